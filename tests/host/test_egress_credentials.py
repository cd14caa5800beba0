"""Credentials on their way: where they go, where they never go, and what the guest can do about it."""

import asyncio
import base64
import os
from collections.abc import AsyncGenerator

import pytest
from tests.support import egress_world, node_world
from tests.support.egress_world import CANARY, World

from space.model.rotation import fingerprint

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")

BOUND = {
    "allow": [
        {
            "host": "bound.test",
            "methods": ["GET", "POST"],
            "paths": ["/api/**"],
            "headers": {"x-api-key": "${secrets.KEY}"},
        },
        {"host": "allowed.test", "protocols": ["https", "http"]},
        {"host": "evil.test"},
    ]
}


@pytest.fixture(scope="module")
async def world() -> AsyncGenerator[World]:
    """All of it, once."""
    async with egress_world.world() as made:
        yield made


def _sent(world: World) -> dict[str, str]:
    """Return the headers of the last request that arrived."""
    return {name.lower(): value for name, value in world.seen()[-1]["headers"]}


async def test_a_header_replaces_whatever_the_guest_sent_in_its_place(world: World) -> None:
    """EGRESS M1, cases H-21, C-08: one header arrives, and it is ours, however the guest spells its own."""
    await world.give(world.one, KEY=CANARY)
    await world.allow(world.one, BOUND)
    guests = [
        ("X-Api-Key", "mine"), ("x_api_key", "mine"), ("X-API_KEY", "mine"), ("x-api-key", "${secrets.KEY}"),
        ("Connection", "x-api-key"), ("Accept-Encoding", "gzip, br"), ("Range", "bytes=0-1"),
    ]  # fmt: skip
    answer = await world.fetch(world.one, "bound.test", "/api/x", headers=guests)
    assert answer["status"] == 200
    seen = [(name.lower(), value) for name, value in world.seen()[-1]["headers"]]
    assert [value for name, value in seen if name.replace("_", "-") == "x-api-key"] == [CANARY]
    assert dict(seen)["accept-encoding"] == "identity"
    assert "range" not in dict(seen)


async def test_a_credential_goes_nowhere_else(world: World) -> None:
    """Cases C-02, C-03, C-05, C-11: not to another path, method, host, port, protocol, or through a mix of names."""
    await world.give(world.one, KEY=CANARY)
    await world.allow(world.one, BOUND)
    before = len(world.seen())
    out = await world.run(
        world.one,
        """
bound, allowed = address_of("bound.test"), address_of("allowed.test")
show([
    fetch("bound.test", "/other"), fetch("bound.test", "/api/../other"), fetch("bound.test", "/api/x", method="PUT"),
    fetch("bound.test", "/api/x", port=80, tls=False), fetch("bound.test", "/api/x", port=443, tls=False),
    fetch("bound.test", "/api/x", address=allowed), fetch("allowed.test", "/api/x", host="bound.test"),
    fetch("bound.test", "/api/x", host="evil.test"), fetch("bound.test", "/api/x", port=8443),
    fetch("evil.test", "/api/x"), fetch("allowed.test", "/api/x"), fetch("allowed.test", "/api/x", port=80, tls=False),
])
""",
    )
    assert [answer.get("status") for answer in out[-3:]] == [200] * 3
    assert all(answer.get("status") != 200 for answer in out[:-3]), out
    arrived = world.seen()[before:]
    assert len(arrived) == 3
    assert CANARY not in str(arrived)
    assert CANARY not in str(out)


async def test_without_its_value_a_request_does_not_go_out(world: World) -> None:
    """An absent secret refuses; one that is added or rotated counts from the next request on."""
    await world.give(world.one)
    await world.allow(world.one, BOUND)
    before = len(world.seen())
    missing = await world.fetch(world.one, "bound.test", "/api/x")
    assert (missing["status"], missing["json"]["code"]) == (502, "unresolved_secret")
    assert len(world.seen()) == before
    for value in ("first-value-of-it", "second-value-of-it"):
        await world.give(world.one, KEY=value)
        assert (await world.fetch(world.one, "bound.test", "/api/x"))["status"] == 200
        assert _sent(world)["x-api-key"] == value
    await world.give(world.one, KEY="a line\r\nX-Injected: 1")
    assert (await world.fetch(world.one, "bound.test", "/api/x"))["json"]["code"] == "unresolved_secret"


async def test_a_placeholder_is_never_filled_where_the_policy_does_not_say(world: World) -> None:
    """Cases C-02, C-15: a placeholder towards another host, or in another header, is refused."""
    await world.give(world.one, KEY=CANARY)
    await world.allow(world.one, BOUND)
    before = len(world.seen())
    for name, path in (("allowed.test", "/"), ("evil.test", "/"), ("bound.test", "/api/x")):
        answer = await world.fetch(world.one, name, path, headers=[("X-Other", "a ${secrets.KEY} b")])
        assert (answer["status"], answer["json"]["code"]) == (403, "credential_refused"), name
    assert len(world.seen()) == before
    body = await world.run(world.one, "show(fetch('bound.test', '/api/x', method='POST', body=b'${secrets.KEY}'))")
    assert body["status"] == 200
    assert body["json"]["body"] == "${secrets.KEY}"


async def test_basic_and_query(world: World) -> None:
    await world.give(world.one, TOKEN="t-1234567890", KEY="k&y=/?")
    await world.allow(
        world.one,
        {
            "allow": [
                {
                    "host": "bound.test",
                    "secrets": [
                        {"kind": "basic", "username": "x-access-token", "password": "${secrets.TOKEN}"},
                        {"kind": "query", "parameter": "key", "value": "${secrets.KEY}"},
                    ],
                }
            ]
        },
    )
    await world.fetch(
        world.one, "bound.test", "/a?key=mine&b=1&%6bey=mine", headers=[("Authorization", "Basic bWluZQ==")]
    )
    seen = world.seen()[-1]
    assert seen["path"] == "/a?b=1&key=k%26y%3D%2F%3F"
    expected = "Basic " + base64.b64encode(b"x-access-token:t-1234567890").decode()
    assert _sent(world)["authorization"] == expected
    event = await world.events(type="verdict", name="bound.test", path="/a")
    assert "k%26" not in event.model_dump_json()


async def test_oauth_tokens_are_fetched_once_and_the_refresh_token_stays(world: World) -> None:
    """Case C-20: the guest sees neither; a token is used until shortly before its end."""
    await world.give(world.one, REFRESH="refresh-original-1", CLIENT="client-secret-1")
    binding = {
        "kind": "oauth",
        "token_url": "https://idp.test/token",
        "client_id": "app",
        "client_secret": "${secrets.CLIENT}",
        "refresh_token": "${secrets.REFRESH}",
    }
    await world.allow(world.one, {"allow": [{"host": "bound.test", "secrets": [binding]}]})
    before = len(world.seen("token"))
    first = await world.fetch(world.one, "bound.test", "/1", headers=[("Authorization", "Bearer mine")])
    assert first["status"] == 200, first
    token = _sent(world)["authorization"]
    assert token.startswith("Bearer token-")
    await world.fetch(world.one, "bound.test", "/2")
    assert _sent(world)["authorization"] == token
    (asked,) = world.seen("token")[before:]
    assert asked["form"] == {"grant_type": "refresh_token", "refresh_token": "refresh-original-1"}
    assert asked["authorization"] == "Basic " + base64.b64encode(b"app:client-secret-1").decode()
    # the endpoint itself is not opened to the guest by that
    assert await world.run(world.one, "show(lookup('idp.test'))") == [5, []]


async def test_a_rotated_refresh_token_outlives_the_gateway_that_was_given_it(world: World) -> None:
    """Without the control plane, which is away: the worker remembers it, for the next gateway and for later."""
    binding = {
        "kind": "oauth",
        "token_url": "https://idp.test/token?once=1&life=0",
        "client_id": "app",
        "refresh_token": "${secrets.REFRESH}",
    }
    before = len(world.seen("token"))
    await world.give(world.one, REFRESH="refresh-zero")
    await world.allow(world.one, {"allow": [{"host": "bound.test", "secrets": [binding]}]})
    assert (await world.fetch(world.one, "bound.test", "/1"))["status"] == 200
    event = await world.events(type="rotated", sandbox=world.one.sandbox)
    assert "REFRESH" in event.why
    async with asyncio.timeout(30):
        while not any(one.replaces("refresh-zero") for one in world.rotated):
            await asyncio.sleep(0.02)
    address = await world.run(world.one, "show(address_of('bound.test'))")
    await world.restart_gateway()
    async with asyncio.timeout(node_world.DEADLINE_S):
        while (await world.fetch(world.one, "bound.test", "/2", address=address)).get("status") != 200:
            await asyncio.sleep(0.05)
    # one more for each request whose answer could not be searched yet
    asked = world.seen("token")[before:]
    given = [f"refresh-{before + 1 + number}" for number in range(len(asked))]
    assert [one["form"]["refresh_token"] for one in asked] == ["refresh-zero", *given[:-1]]
    assert not any(one["used"] for one in asked), "each once, as the endpoint demands"
    # told once more as the endpoint has long dropped it, by a control plane that has not heard of it yet
    await world.give(world.one, REFRESH="refresh-zero")
    assert (await world.fetch(world.one, "bound.test", "/3"))["status"] == 200
    # the control plane is back, and stores what the worker has told it last
    async with asyncio.timeout(30):
        while (newest := f"refresh-{len(world.seen('token'))}") != world.rotated[-1].value:
            await asyncio.sleep(0.02)
    assert world.rotated[-1].replaces("refresh-zero")
    await world.link.rotation_stored("id-of-REFRESH", fingerprint(newest))
    assert world.link.rotations.unstored() == []
    await world.give(world.one, REFRESH=newest)
    assert world.link.rotations.known() == []
    assert (await world.fetch(world.one, "bound.test", "/4"))["status"] == 200


async def test_aws_requests_are_signed_anew(world: World) -> None:
    """Case C-21: a dummy key's signature is replaced; chunk signatures and presigned URLs are refused."""
    await world.give(world.one, ID="AKIAREALREALREAL", SECRET="real-secret-key-000")
    binding = {
        "kind": "sigv4",
        "access_key_id": "${secrets.ID}",
        "secret_access_key": "${secrets.SECRET}",
        "service": "s3",
        "region": "eu-central-1",
    }
    await world.allow(world.one, {"allow": [{"host": "bound.test", "secrets": [binding]}]})
    dummy = [
        ("Authorization", "AWS4-HMAC-SHA256 Credential=AKIADUMMY/20200101/us-east-1/s3/aws4_request, Signature=00"),
        ("X-Amz-Date", "20200101T000000Z"), ("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD"), ("X-Amz-Security-Token", "x"),
    ]  # fmt: skip
    assert (await world.fetch(world.one, "bound.test", "/bucket/key?list-type=2", headers=dummy))["status"] == 200
    sent = _sent(world)
    assert "Credential=AKIAREALREALREAL/" in sent["authorization"]
    assert "/eu-central-1/s3/aws4_request" in sent["authorization"]
    assert sent["x-amz-date"] != "20200101T000000Z"
    before = len(world.seen())
    chunked = [("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")]
    for path, headers in (("/k", chunked), ("/k?X-Amz-Signature=00&X-Amz-Credential=a", [])):
        answer = await world.fetch(world.one, "bound.test", path, headers=headers)
        assert (answer["status"], answer["json"]["code"]) == (403, "unsignable_request")
    assert len(world.seen()) == before


async def test_a_policy_without_the_binding_sends_none(world: World) -> None:
    """Case C-19: another sandbox with the same rule but without secrets (a fork) gets nothing."""
    await world.give(world.one, KEY=CANARY)
    await world.allow(world.one, BOUND)
    await world.allow(world.two, BOUND)
    assert (await world.fetch(world.one, "bound.test", "/api/x"))["status"] == 200
    assert (await world.fetch(world.two, "bound.test", "/api/x"))["json"]["code"] == "unresolved_secret"


REFLECTING = {
    "allow": [
        {"host": "bound.test", "paths": ["/api/**"], "headers": {"x-api-key": "${secrets.KEY}"}},
        {"host": "bound.test", "paths": ["/reflect"], "headers": {"x-api-key": "${secrets.KEY}"}},
        {"host": "bound.test", "paths": ["/free/**"]},
    ]
}


@pytest.mark.parametrize("form", ["raw", "base64", "base64-1", "url", "json"])
async def test_a_reflected_secret_is_taken_out_of_the_answer(world: World, form: str) -> None:
    """EGRESS M4, cases C-06, C-07: in headers and body, in each usual form, wherever the pieces are cut."""
    secret = 'Key/+= "with" odd&chars-123'
    await world.give(world.one, KEY=secret)
    await world.allow(world.one, REFLECTING)
    for piece in (1, 7, 1000):
        answer = await world.fetch(world.one, "bound.test", f"/reflect?header=x-api-key&form={form}&piece={piece}")
        assert answer["status"] == 200, answer
        assert "[REDACTED]" in answer["text"]
        assert answer["headers"]["x-echo"] == "[REDACTED]"
        assert "etag" not in answer["headers"]
        if form in ("raw", "url", "json"):
            frame = ("." * 100 + "{}" + "." * 100).format('{"v": "[REDACTED]"}' if form == "json" else "[REDACTED]")
            assert answer["text"] == frame
    assert _sent(world)["x-api-key"] == secret


async def test_an_encoded_answer_of_a_bound_host_is_withheld(world: World) -> None:
    """Case C-07: what cannot be searched is not passed on, and no range or encoding of the guest's is asked for."""
    await world.give(world.one, KEY=CANARY)
    await world.allow(world.one, REFLECTING)
    answer = await world.fetch(
        world.one, "bound.test", "/reflect?header=x-api-key&form=gzip", headers=[("accept-encoding", "gzip")]
    )
    assert (answer["status"], answer["json"]["code"]) == (502, "unredactable_answer")
    assert CANARY not in str(answer)


async def test_answers_of_other_rules_of_a_bound_host_are_searched_too(world: World) -> None:
    """What a server was sent at one path it may show at another; former values count."""
    await world.allow(world.one, REFLECTING)
    await world.give(world.one, KEY=CANARY)
    assert (await world.fetch(world.one, "bound.test", "/api/x"))["status"] == 200
    await world.give(world.one, KEY="the-next-value-of-it")
    answer = await world.fetch(world.one, "bound.test", f"/free/x?shows={CANARY}")
    assert answer["status"] == 200
    assert CANARY not in str(answer["json"])
    assert "x-api-key" not in _sent(world)


async def test_nothing_comes_back_before_the_answer(world: World) -> None:
    """EGRESS M4: an informational answer passes no filter that could search it, so none reaches the guest."""
    await world.give(world.one, KEY=CANARY)
    await world.allow(world.one, {"allow": [{"host": "bound.test", "headers": {"x-api-key": "${secrets.KEY}"}}]})
    raw = await world.run(
        world.one,
        """
s = connect("bound.test")
s.sendall(b"GET /early HTTP/1.1\\r\\nHost: bound.test\\r\\nConnection: close\\r\\n\\r\\n")
show(b"".join(iter(lambda: s.recv(4096), b"")).decode())
""",
    )
    assert raw.startswith("HTTP/1.1 200 ")
    assert CANARY not in raw
    upload = await world.run(
        world.one,
        "show(fetch('bound.test', '/upload', method='PUT', headers=[('Expect', '100-continue')], body=bytes(10)))",
    )
    assert upload["json"] == {"bytes": 10}


async def test_large_answers_of_bound_hosts_pass(world: World) -> None:
    await world.give(world.one, KEY=CANARY)
    await world.allow(world.one, {"allow": [{"host": "bound.test", "headers": {"x-api-key": "${secrets.KEY}"}}]})
    down = await world.run(
        world.one, "r = fetch('bound.test', '/bytes?n=5000000')\nshow([r['status'], len(r['text'])])"
    )
    assert down == [200, 5_000_000]
    up = await world.run(world.one, "show(fetch('bound.test', '/upload', method='PUT', body=bytes(3_000_000)))")
    assert up["json"] == {"bytes": 3_000_000}


async def test_no_secret_is_in_any_log_or_event(world: World) -> None:
    """EGRESS H5, case C-14: after all of the above, and after failures."""
    await world.give(world.one, KEY=CANARY)
    await world.allow(world.one, BOUND)
    assert (await world.fetch(world.one, "bound.test", "/api/x"))["status"] == 200
    assert _sent(world)["x-api-key"] == CANARY
    for process in ("gateway", "egress", "redactor"):
        assert CANARY not in (world.layout.data_dir / f"{process}.log").read_text()
    last = await world.events(type="traffic", name="bound.test", status=200)
    assert CANARY not in last.model_dump_json()
