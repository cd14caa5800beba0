"""What else rules can say: budgets, asking a person, observing; and what a crash of the proxy gives away."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from typing import cast

import pytest
from envoy.service.auth.v3 import external_auth_pb2
from google.protobuf import struct_pb2
from google.rpc import code_pb2, status_pb2
from tests.support import egress_world, node_world
from tests.support.egress_world import CANARY, World

from space.gateway import unary
from space.model.errors import NotFound
from space.wire.gateway import AskAnswer

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")


@pytest.fixture(scope="module")
async def world() -> AsyncGenerator[World]:
    """All of it, once."""
    async with egress_world.world() as made:
        yield made


async def test_a_rules_requests_in_a_minute_are_counted(world: World) -> None:
    rule = {"host": "allowed.test", "limits": {"requests_per_minute": 3}}
    await world.allow(world.one, {"allow": [rule, {"host": "evil.test"}]})
    out = await world.run(
        world.one,
        "s = connect('allowed.test'); e = connect('evil.test')\n"
        "show([fetch('allowed.test', on=s) for _ in range(5)] + [fetch('evil.test', on=e)])",
    )
    assert [answer["status"] for answer in out] == [200, 200, 200, 429, 429, 200]
    assert out[3]["json"]["code"] == "budget_spent"
    assert int(out[3]["headers"]["retry-after"]) > 0
    await world.allow(world.one, {"allow": [rule]})  # a new policy begins anew
    assert (await world.fetch(world.one, "allowed.test"))["status"] == 200


async def test_a_download_over_its_rules_bytes_ends(world: World) -> None:
    """The proxy tells each second how much has passed; the worker ends the connection, and the next is refused."""
    rule = {"host": "allowed.test", "limits": {"download_bytes": 2_000}}
    await world.allow(world.one, {"allow": [rule]})
    out = await world.run(
        world.one,
        """
s = connect("allowed.test")
s.sendall(b"GET /slow HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n")
s.settimeout(20)
try:
    while s.recv(4096): pass
    end = "end"
except OSError as error: end = type(error).__name__
show([end, fetch("allowed.test")])
""",
    )
    assert out[0] in {"end", "ConnectionResetError"}
    assert (out[1]["status"], out[1]["json"]["code"]) == (429, "budget_spent")


async def test_a_person_may_be_asked(world: World) -> None:
    """EGRESS M8: the request waits; a yes lets this one through, a no refuses it, silence does after its time."""
    await world.allow(world.one, {"allow": [{"host": "evil.test"}], "ask": {"timeout_s": 30}})
    generation = world.generations[world.one.sandbox]
    for allow, status in ((True, 200), (False, 403)):
        path = f"/asked/{allow}"
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            request = group.create_task(world.fetch(world.one, "allowed.test", path))
            ask = await world.events(type="ask", sandbox=world.one.sandbox, path=path, generation=generation)
            assert not request.done()
            await world.client.answer_ask(world.one.sandbox, ask.seq, AskAnswer(allow=allow))
        assert request.result()["status"] == status
        verdict = await world.events(type="verdict", sandbox=world.one.sandbox, path=path)
        assert (verdict.allowed, verdict.of) == (allow, ask.seq)
        with pytest.raises(NotFound):
            await world.client.answer_ask(world.one.sandbox, ask.seq, AskAnswer(allow=True))
    await world.allow(world.one, {"ask": {"timeout_s": 1}})
    assert (await world.fetch(world.one, "allowed.test"))["status"] == 403


async def test_observing_lets_through_and_says_so(world: World) -> None:
    await world.allow(world.one, {"observe": True})
    assert (await world.fetch(world.one, "allowed.test", "/learned"))["status"] == 200
    event = await world.events(type="verdict", sandbox=world.one.sandbox, path="/learned")
    assert (event.allowed, event.observed, event.rule) == (True, True, None)


async def test_what_the_proxy_refuses_by_itself_is_an_event_too(world: World) -> None:
    await world.allow(world.one, {"allow": [{"host": "allowed.test"}]})
    await world.run(
        world.one,
        "s = connect('allowed.test'); s.sendall(b'GET /x HTTP/1.1\\r\\nHost: allowed.test\\r\\n"
        "Content-Length: 1\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n'); show(s.recv(100).decode())",
    )
    event = await world.events(type="refused", sandbox=world.one.sandbox)
    assert event.status == 400


async def test_a_crash_of_the_proxy_gives_no_credential_away(world: World) -> None:
    """EGRESS H5: Envoy prints the headers of the request at hand when it crashes; nobody keeps that output."""
    await world.give(world.one, KEY=CANARY)
    await world.allow(world.one, {"allow": [{"host": "bound.test", "headers": {"x-api-key": "${secrets.KEY}"}}]})
    lines = """
s = connect("bound.test")
s.sendall(b"GET /slow HTTP/1.1\\r\\nHost: bound.test\\r\\n\\r\\n")
print(len(s.recv(100)))
try:
    while s.recv(4096): pass
    print("end")
except OSError as e: print(type(e).__name__)
"""
    async with world.running(world.one, lines) as stream:
        async with asyncio.timeout(node_world.DEADLINE_S):
            assert int(await stream.readline()) > 0
            world.proxy.send(signal.SIGSEGV)
            await world.proxy.wait()
            assert not (await stream.readline()).strip().isdigit()
    for file in world.layout.data_dir.glob("*.log"):
        assert CANARY not in file.read_text() or file == world.log, file
    assert not list(world.layout.data_dir.glob("core*"))
    before = len(world.seen())
    assert "error" in await world.fetch(world.one, "bound.test")
    assert len(world.seen()) == before
    async with node_world.egress_proxy(world.layout, world.roots_file):
        assert (await world.fetch(world.one, "bound.test"))["status"] == 200


async def test_a_redactor_that_is_gone_holds_back_bound_answers_only(world: World) -> None:
    """Case P-07: an answer that cannot be searched does not reach the guest."""
    await world.give(world.two, KEY=CANARY)
    await world.allow(
        world.two,
        {"allow": [{"host": "bound.test", "headers": {"x-api-key": "${secrets.KEY}"}}, {"host": "allowed.test"}]},
    )
    async with node_world.egress_proxy(world.layout, world.roots_file):
        assert (await world.fetch(world.two, "bound.test"))["status"] == 200
        world.redactor.send(signal.SIGKILL)
        await world.redactor.wait()
        answer = await world.fetch(world.two, "bound.test", "/reflect?header=x-api-key")
        assert (answer["status"], answer["json"]["code"]) == (503, "unavailable")
        assert CANARY not in str(answer)
        assert (await world.fetch(world.two, "allowed.test"))["status"] == 200


async def test_only_plain_addresses_are_dialled(world: World) -> None:
    """EGRESS C2: a decision without an address, or with an odd one, fell back to where the guest wanted to."""
    layout = world.layout
    await world.allow(world.one, {"allow": [{"host": "allowed.test", "protocols": ["http"]}]})
    address = await world.run(world.one, "show(address_of('allowed.test'))")
    odd = (
        "", "not-an-address", "999.1.1.1:80", "203.0.113.20", "203.0.113.20:0", "203.0.113.20:65536",
        "203.0.113.20:080", "[::1]:80", "203.0.113.20:80,10.0.0.1:80", "allowed.test:80",
    )  # fmt: skip
    decisions = iter((*odd, "203.0.113.20:80"))

    async def decide(_question: bytes) -> bytes:
        dial = next(decisions)
        let = external_auth_pb2.CheckResponse(
            status=status_pb2.Status(code=code_pb2.OK),
            ok_response=external_auth_pb2.OkHttpResponse(headers_to_remove=["x-nothing"]),
            dynamic_metadata=struct_pb2.Struct(fields={"dial": struct_pb2.Value(string_value=dial)} if dial else {}),
        )
        return cast("bytes", let.SerializeToString())

    world.proxy.send(signal.SIGKILL)
    await world.proxy.wait()
    kept = layout.decisions_sock.with_suffix(".kept")
    layout.decisions_sock.rename(kept)
    try:
        async with unary.serving(layout.decisions_sock, decide):
            os.chown(layout.decisions_sock, layout.gateway_uid, layout.egress_gateway_gid)
            async with node_world.egress_proxy(layout, world.roots_file):
                before = len(world.seen())
                lines = f"fetch('allowed.test', port=80, tls=False, address={address!r}) for _ in range({len(odd) + 1})"
                *refused, good = await world.run(world.one, f"show([{lines}])")
                for dial, answer in zip(odd, refused, strict=True):
                    assert (answer["status"], answer["json"]["code"]) == (403, "egress_denied"), (dial, answer)
                assert good["status"] == 200, good
                assert len(world.seen()) == before + 1
    finally:
        kept.rename(layout.decisions_sock)
