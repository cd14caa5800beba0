"""A guest's way out, with everything real between it and the servers outside: what works, and what must not.

Oracles are the servers' own log and the answers; each attack has its positive control in the same test or beside it.
The findings named in docstrings are those of the review that the design answers (docs/decisions/0018).
"""

import os
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.support import egress_world
from tests.support.egress_world import World

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")

PUBLIC = {"allow": [{"host": "allowed.test", "methods": ["GET"], "paths": ["/public/**"]}]}
WHOLE = {"allow": [{"host": "allowed.test", "protocols": ["https", "http"]}]}


@pytest.fixture(scope="module")
async def world() -> AsyncGenerator[World]:
    """All of it, once."""
    async with egress_world.world() as made:
        yield made


def _refused(answer: dict[str, Any], status: int = 403, code: str = "egress_denied") -> bool:
    """Tell whether an answer is our refusal: a problem with this code."""
    return (
        answer.get("status") == status
        and answer["headers"]["content-type"] == "application/problem+json"
        and answer["json"]["code"] == code
    )


async def test_an_allowed_request_arrives_as_the_guest_made_it(world: World) -> None:
    """EGRESS M1: the upstream sees the guest's request, and nothing of ours or of Envoy's."""
    await world.allow(world.one, PUBLIC)
    answer = await world.fetch(world.one, "allowed.test", "/public/x?a=b", headers=[("X-Mine", "1")])
    assert answer["status"] == 200, answer
    seen = answer["json"]
    assert (seen["method"], seen["path"], seen["sni"]) == ("GET", "/public/x?a=b", "allowed.test")
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert headers == {"host": "allowed.test", "x-mine": "1"}


async def test_what_no_rule_allows_is_refused_with_a_reason(world: World) -> None:
    await world.allow(world.one, PUBLIC)
    before = len(world.seen())
    for path, method in (("/secret/x", "GET"), ("/public/x", "POST"), ("/public", "GET"), ("/public/x", "TRACE")):
        answer = await world.fetch(world.one, "allowed.test", path, method=method)
        assert _refused(answer), (path, method, answer)
    assert len(world.seen()) == before
    assert (await world.fetch(world.one, "allowed.test", "/public/x"))["status"] == 200


async def test_a_sandbox_without_a_policy_reaches_nothing(world: World) -> None:
    """EGRESS M3: it may find out that another sandbox has a certificate for a name; what it asks for is refused."""
    answer = await world.run(world.two, "show([lookup('allowed.test'), lookup('allowed.test', tcp=True)])")
    assert answer == [[5, []], [5, []]]
    before = len(world.seen())
    assert _refused(await world.fetch(world.two, "allowed.test", address="198.18.0.1"))
    assert "error" in await world.fetch(world.two, "denied.test", address="198.18.0.1")
    assert len(world.seen()) == before


async def test_dns_answers_allowed_names_only_and_asks_nobody(world: World) -> None:
    """EGRESS M6, cases D-04, D-07, D-14: A of an allowed name; other types no data; all else refused."""
    await world.allow(world.one, {"allow": [{"host": "allowed.test"}, {"host": "*.wild.test"}]})
    asked = len(world.seen("dns"))
    answers = await world.run(
        world.one,
        """
names = ["allowed.test", "ALLOWED.TEST", "a.wild.test", "denied.test", "wild.test", "x.exfil.test", "test", "",
         "allowed.test.evil.test", "xallowed.test", "127.1", "2130706433", "a..test", "-a.wild.test", "a_b.wild.test"]
show([[lookup(name, tcp=tcp) if "" not in name.split(".") or not name else None for name in names]
      for tcp in (False, True)]
     + [[lookup("allowed.test", kind) for kind in (AAAA, HTTPS, TXT, ANY, 12, 252)],
        [lookup("allowed.test", server=s) for s in ("8.8.8.8", "9.9.9.9")]])
""",
    )
    plain, tcp, kinds, elsewhere = answers
    assert plain == tcp
    address = plain[0][1][0]
    assert address.startswith(("198.18.", "198.19."))
    assert plain[0] == plain[1] == [0, [address]]
    assert plain[2][0] == 0
    assert plain[2][1] != [address]
    assert [answer and answer[0] for answer in plain[3:]] == [5, 5, 5, 5, 5, 5, 5, 5, 5, None, 5, 5]
    assert kinds == [[0, []]] * 6
    assert elsewhere == [[0, [address]]] * 2
    assert len(world.seen("dns")) == asked


async def test_malformed_questions_are_answered_shortly_or_not_at_all(world: World) -> None:
    """Cases D-09, D-18: nothing odd is passed on, nothing crashes, and plain questions go on being answered."""
    await world.allow(world.one, WHOLE)
    answers = await world.run(
        world.one,
        r"""
q = question("allowed.test")
odd = [
    q[:2] + b"\x81\x00" + q[4:],                      # says it is an answer
    q[:2] + b"\x28\x00" + q[4:],                      # opcode UPDATE
    q[:2] + b"\x20\x00" + q[4:],                      # opcode NOTIFY
    q[:4] + b"\x00\x00" + q[6:],                      # no question
    q[:4] + b"\x00\x02" + q[6:] + q[12:],             # two questions
    q[:4] + b"\xff\xff" + q[6:],                      # 65,535 of them
    q[:12] + b"\xc0\x0c" + b"\x00\x01\x00\x01",       # a name that points at itself
    q[:12] + b"\x40" + b"a" * 64 + b"\x00\x00\x01\x00\x01",
    question(".".join(["a" * 60] * 5)),
    q + b"trailing",
    q[:-2] + b"\x00\x03",                             # class CHAOS
    b"short",
]
out = []
for data in odd:
    answer = send(data, timeout=0.5)
    out.append(None if answer is None else answer[3] & 15)
tcp = []
with socket.create_connection((NAME_SERVER, 53), 5) as s:
    s.sendall(struct.pack("!H", 65535) + q)           # a length that never comes
    s.settimeout(10)
    try: tcp.append(s.recv(10) == b"")
    except TimeoutError: tcp.append("open")
with socket.create_connection((NAME_SERVER, 53), 5) as s:
    s.sendall((struct.pack("!H", len(q)) + q) * 50)
    f = s.makefile("rb")
    tcp.append(all(parse(f.read(int.from_bytes(f.read(2), "big")))[0] == 0 for _ in range(50)))
show([out, tcp, lookup("allowed.test")[0]])
""",
    )
    assert answers[0] == [None, 4, 4, 1, 1, 1, 1, 1, 1, 1, 5, None]
    assert answers[1:] == [[True, True], 0]


async def test_a_name_keeps_its_address_and_is_recorded_before_the_guest_knows(world: World) -> None:
    """EGRESS M5: an address never gets a second name, so the worker has it on storage first."""
    await world.allow(world.one, {"allow": [{"host": "*.wild.test"}]})
    found = await world.run(
        world.one, "show([address_of(f'n{i}.wild.test') for i in range(20)] + [address_of('n3.wild.test')])"
    )
    assert len(set(found)) == 20
    assert found[20] == found[3]
    recorded = {name: address for sandbox, address, name in world.named if sandbox == world.one.sandbox}
    assert {f"n{i}.wild.test": found[i] for i in range(20)}.items() <= recorded.items()


async def test_names_of_the_connection_must_be_one(world: World) -> None:
    """EGRESS C2, H4, cases T-01, T-02, T-03, T-05, H-06: address, TLS name and Host that differ reach nobody."""
    await world.allow(
        world.one, {"allow": [{"host": "allowed.test", "protocols": ["https", "http"]}, {"host": "evil.test"}]}
    )
    before = len(world.seen())
    out = await world.run(
        world.one,
        """
allowed, evil = address_of("allowed.test"), address_of("evil.test")
out = {
    "no sni": fetch("allowed.test", sni=None),
    "other sni": fetch("allowed.test", sni="evil.test"),
    "denied sni": fetch("allowed.test", sni="denied.test"),
    "denied host": fetch("allowed.test", host="denied.test"),
    "allowed other host": fetch("allowed.test", host="evil.test"),
    "address of another": fetch("evil.test", sni="evil.test", address=allowed),
    "unknown address": fetch("allowed.test", address="198.18.255.1" if allowed != "198.18.255.1" else "198.18.255.2"),
    "real address": fetch("allowed.test", address="203.0.113.20"),
    "plain denied host": fetch("allowed.test", host="denied.test", port=80, tls=False),
    "plain on 443": fetch("allowed.test", port=443, tls=False),
    "empty host": fetch("allowed.test", host=""),
    "userinfo": fetch("allowed.test", host="denied.test@allowed.test"),
    "comma": fetch("allowed.test", host="allowed.test,denied.test"),
    "other port": fetch("allowed.test", host="allowed.test:80"),
    "two hosts": fetch("allowed.test", headers=[("Host", "denied.test")]),
    "address host": fetch("allowed.test", host="203.0.113.20"),
    "absolute": fetch("allowed.test", "https://denied.test/"),
    "absolute self": fetch("allowed.test", "https://allowed.test/"),
    "connect": fetch("allowed.test", "denied.test:443", method="CONNECT"),
}
show(out)
""",
    )
    assert not [name for name, answer in out.items() if answer.get("status") == 200], out
    assert len(world.seen()) == before
    for name in ("denied host", "allowed other host", "plain denied host", "comma", "other port", "address host"):
        assert _refused(out[name], 421, "misdirected"), (name, out[name])
    assert "error" in out["no sni"]
    assert "error" in out["denied sni"]
    good = await world.run(
        world.one,
        """
s = connect("allowed.test")
show([fetch("allowed.test", "/1", on=s), fetch("allowed.test", "/2", host="denied.test", on=s),
      fetch("allowed.test", "/3", host="ALLOWED.test.", on=s), fetch("allowed.test", "/4", port=80, tls=False)])
""",
    )
    assert [answer["status"] for answer in good] == [200, 421, 200, 200]
    assert dict(good[2]["json"]["headers"])["host"] == "allowed.test"  # what is sent is the policy's spelling


FORGED = [
    ("x-envoy-original-dst-host", "203.0.113.66:443"),
    ("x-envoy-original-path", "/public/nice"),
    ("x-envoy-retry-on", "5xx"),
    ("x-forwarded-for", "100.64.0.5"),
    ("x-forwarded-host", "evil.test"),
    ("x-forwarded-proto", "http"),
    ("forwarded", "for=1.2.3.4"),
    ("x-original-url", "/secret"),
    ("x-rewrite-url", "/secret"),
    ("x-http-method-override", "DELETE"),
    ("x-http-method", "DELETE"),
    ("x-method-override", "DELETE"),
    ("x-space-upgrade", "websocket"),
    ("x-space-redact", "0"),
    ("via", "1.1 x"),
    ("proxy-authorization", "Basic eDp5"),
    ("x-request-id", "7"),
]


async def test_forged_headers_steer_nothing_and_do_not_arrive(world: World) -> None:
    """EGRESS C2, H2, H3, M1: not where it is dialled, not who it was, not how the upstream routes it."""
    await world.allow(world.one, PUBLIC)
    answer = await world.fetch(world.one, "allowed.test", "/public/x", headers=FORGED)
    assert answer["status"] == 200
    assert [name.lower() for name, _ in answer["json"]["headers"]] == ["host"]
    assert answer["json"]["local"][0] == egress_world.FAR
    event = await world.events(type="traffic", sandbox=world.one.sandbox, status=200)
    assert event.address == egress_world.FAR
    assert _refused(await world.fetch(world.one, "allowed.test", "/secret", headers=FORGED))


async def test_only_screened_addresses_are_dialled(world: World) -> None:
    """Cases D-11, D-12, A-05 to A-07: an allowed name that points inside is refused."""
    names = ("metadata.test", "private.test", "slot.test")
    await world.allow(world.one, {"allow": [{"host": name} for name in (*names, "mixed.test")]})
    for name in names:
        assert _refused(await world.fetch(world.one, name), 502, "not_resolved"), name
    mixed = await world.fetch(world.one, "mixed.test")
    assert mixed["json"]["local"][0] == egress_world.FAR
    # a rule that names the network where it expects the host is the one way to a private address
    await world.allow(world.one, {"allow": [{"host": "private.test", "cidr": "10.99.0.0/24"}]})
    assert (await world.fetch(world.one, "private.test"))["json"]["local"][0] == "10.99.0.5"
    await world.allow(world.one, {"allow": [{"host": "allowed.test", "cidr": "10.99.0.0/24"}]})
    assert _refused(await world.fetch(world.one, "allowed.test"), 502, "not_resolved")


async def test_upstreams_are_verified_by_the_policys_name(world: World) -> None:
    """Cases T-10, T-11: another's certificate, an old one, one that nobody vouches for: nothing leaves."""
    bad = ("wrong.test", "expired.test", "self.test", "down.test")
    await world.allow(world.one, {"allow": [{"host": name} for name in (*bad, "allowed.test")]})
    before = len(world.seen())
    for name in bad:
        assert _refused(await world.fetch(world.one, name), 502, "egress_failed"), name
    assert len(world.seen()) == before
    assert (await world.fetch(world.one, "allowed.test"))["status"] == 200


async def test_guests_share_no_connection_to_a_server(world: World) -> None:
    """EGRESS M2: in one connection of two sandboxes, the credentials of both are compressed by one table."""
    for guest in (world.one, world.two):
        await world.allow(guest, WHOLE)
    guests = (world.one, world.two, world.one)
    peers = {tuple((await world.fetch(guest, "allowed.test"))["json"]["peer"]) for guest in guests}
    assert len(peers) == 3


async def test_paths_are_judged_as_they_are_sent(world: World) -> None:
    """EGRESS H3, case H-09: no spelling of a path reaches what its plain form does not."""
    await world.allow(world.one, PUBLIC)
    before = len(world.seen())
    for path in (
        "/public/../secret/x", "/public/..%2fsecret/x", "/public/%2e%2e/secret/x", "/public/..;/secret/x",
        "/public/%252e%252e/secret", "/public//secret", "/public/%5c..%5csecret", "/public/x%00", "/public/%c0%ae/x",
        "//public/x", "/%2e/secret", "/public/..\\secret", "*", "/public/a;b/c", "/public/%2f..%2fsecret",
    ):  # fmt: skip
        answer = await world.fetch(world.one, "allowed.test", path)
        assert answer.get("status") in (400, 403, 404), (path, answer)
    assert len(world.seen()) == before
    # where no rule is about paths, encoded slashes are a registry's business (npm)
    await world.allow(world.one, WHOLE)
    seen = (await world.fetch(world.one, "allowed.test", "/@scope%2fname"))["json"]
    assert seen["path"] == "/@scope%2fname"
    assert (await world.fetch(world.one, "allowed.test", "/a/./b/../c"))["json"]["path"] == "/a/c"


async def test_upgrades_need_the_rule_that_says_so(world: World) -> None:
    """EGRESS H8, cases H-12, H-14: no tunnel by WebSocket, h2c or something made up without a rule for it."""
    attempt = """
key = [("Connection", "Upgrade"), ("Upgrade", "{}"), ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
       ("Sec-WebSocket-Version", "13")]
s = connect("allowed.test")
answer = fetch("allowed.test", "/ws", headers=key, on=s)
echo = None
if answer.get("status") == 101:
    s.sendall(b"ping")
    echo = s.recv(4).decode()
show([answer.get("status"), echo])
"""
    await world.allow(world.one, {"allow": [{"host": "allowed.test"}]})
    assert await world.run(world.one, attempt.format("websocket")) == [403, None]
    await world.allow(world.one, {"allow": [{"host": "allowed.test", "websocket": True}]})
    assert await world.run(world.one, attempt.format("websocket")) == [101, "ping"]
    for other in ("h2c", "tcp", "websocket, tcp"):
        status, echo = await world.run(world.one, attempt.format(other))
        assert status != 101, other
        assert echo is None
    forged = [("x-space-upgrade", "websocket"), ("Connection", "Upgrade"), ("Upgrade", "websocket")]
    await world.allow(world.one, {"allow": [{"host": "allowed.test"}]})
    assert (await world.fetch(world.one, "allowed.test", "/ws", headers=forged))["status"] == 403


async def test_alt_svc_does_not_reach_the_guest(world: World) -> None:
    """Case H-20: a client must not learn of HTTP/3, which does not leave."""
    await world.allow(world.one, WHOLE)
    answer = await world.fetch(world.one, "allowed.test", "/alt")
    assert answer["status"] == 200
    assert "alt-svc" not in answer["headers"]


async def test_bodies_pass_in_both_directions(world: World) -> None:
    await world.allow(world.one, WHOLE)
    up = await world.run(world.one, "show(fetch('allowed.test', '/upload', method='PUT', body=bytes(3_000_000)))")
    assert up["json"] == {"bytes": 3_000_000}
    down = await world.run(
        world.one, "r = fetch('allowed.test', '/bytes?n=3000000')\nshow([r['status'], len(r['text'])])"
    )
    assert down == [200, 3_000_000]


async def test_every_decision_is_an_event(world: World) -> None:
    """Who, name, address, method, path without its query, verdict, rule, why; then bytes, time and status."""
    await world.allow(world.two, PUBLIC)
    guest, generation = world.two.sandbox, world.generations[world.two.sandbox]
    await world.fetch(world.two, "allowed.test", "/public/e?token=hidden")
    await world.fetch(world.two, "allowed.test", "/secret")
    await world.run(world.two, "show(lookup('nope.test'))")
    yes = await world.events(type="verdict", sandbox=guest, allowed=True, path="/public/e", generation=generation)
    assert (yes.protocol, yes.name, yes.port, yes.address, yes.rule) == (
        "https",
        "allowed.test",
        443,
        "203.0.113.20",
        0,
    )
    end = await world.events(type="traffic", sandbox=guest, of=yes.seq)
    assert end.status == 200
    assert end.sent_bytes
    assert end.received_bytes
    assert end.ms is not None
    no = await world.events(type="verdict", sandbox=guest, allowed=False, path="/secret")
    assert no.why
    assert (await world.events(type="verdict", sandbox=guest, protocol="dns", name="nope.test")).allowed is False
