"""By which way what is allowed leaves: an upstream proxy, or nothing; and which name servers are asked."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support import egress_world, internet_ns, node_world, way_server
from tests.support.egress_world import CANARY, FAR, World, make_ca, make_leaf

from space.host import command, netns
from space.model import ranges
from space.net import nft
from space.wire.gateway import EGRESS_TUNNEL_PORT

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")

PROXY, RESOLVER = "203.0.113.30", "203.0.113.54"
CREDENTIALS = {"username": way_server.USERNAME, "password": "${secrets.PROXY}"}
RULES = {
    "allow": [
        {"host": "allowed.test", "protocols": ["https", "http"]},
        {"host": "allowed.test", "protocol": "tcp", "ports": [2222]},
        {"host": "evil.test"},
        {"host": "wrong.test"},
        {"host": "metadata.test"},
        {"host": "elsewhere.test", "protocol": "http"},
    ]
}
SPEAK = """
def speak(address, port=2222):
    try:
        s = socket.create_connection((address, port), 8)
        f = s.makefile("rb")
        first = f.readline()
        s.sendall(b"hello\\n")
        echo = f.readline()
        s.shutdown(socket.SHUT_WR)
        return [first.decode(), echo.decode(), f.read().decode()]
    except OSError as error:
        return type(error).__name__
"""
WHOLE = ["220 ready\n", "hello\n", "bye\n"]
ALL = (
    SPEAK
    + """
show([fetch("allowed.test"), fetch("allowed.test", port=80, tls=False), speak(address_of("allowed.test"))])
"""
)


class Ways:
    """The world with proxies and a name server outside; `ca` signed the proxy's certificate for `proxy.test`."""

    def __init__(self, world: World, ca: str) -> None:
        self.world, self.ca = world, ca

    async def go(
        self, address: str | None, more: Mapping[str, object] | None = None, rules: Mapping[str, object] = RULES
    ) -> None:
        """Have the first guest go by this way: the proxy's address, and what else is said of it."""
        way = {} if address is None else {"upstream_proxy": {"address": address, **(more or {})}}
        await self.world.allow(self.world.one, {**rules, **way})

    def asked(self, kind: str = "socks") -> list[dict[str, Any]]:
        """Return what proxies (or the name server) were asked for."""
        return self.world.seen(kind)


@pytest.fixture(scope="module")
async def ways() -> AsyncGenerator[Ways]:
    """All of it, once."""
    async with egress_world.world() as world:
        ca = make_ca("the proxy's")
        folder = world.layout.data_dir
        facts = {
            "dns": {"elsewhere.test": [FAR], "metadata.test": ["169.254.169.254"]},
            "resolver": RESOLVER,
            "password": CANARY,
            "tls": str(make_leaf(ca, "proxy.test", folder / "proxy.pem")),
            "log": str(world.log),
        }
        file = folder / "ways.json"
        file.write_text(json.dumps(facts))
        argv = (sys.executable, "-m", "tests.support.way_server", str(file))
        process = await asyncio.create_subprocess_exec(
            *command.in_netns(world.beyond.internet_path, argv),
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        try:
            assert process.stdout
            async with asyncio.timeout(node_world.DEADLINE_S):
                assert await process.stdout.readline() == b"ready\n"
            await world.give(world.one, PROXY=CANARY)
            yield Ways(world, ca.pem)
        finally:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("tls", [False, True])
async def test_all_that_is_allowed_goes_through_the_proxy(ways: Ways, tls: bool) -> None:
    """Half-closed ends pass. The proxy is asked for addresses, which were looked up and screened here."""
    secured: dict[str, object] = {"tls": {"ca": ways.ca}} if tls else {}
    port = way_server.TLS if tls else way_server.PLAIN
    await ways.go(f"proxy.test:{port}", CREDENTIALS | secured)
    before = len(ways.asked()), len(ways.world.seen())
    https, http, raw = await ways.world.run(ways.world.one, ALL)
    assert (https["status"], http["status"]) == (200, 200)
    assert raw[:2] == WHOLE[:2]
    assert tls or raw == WHOLE, "this proxy knows no half-closed ends of TLS"
    asked = ways.asked()[before[0] :]
    assert [(one["host"], one["port"], one["type"]) for one in asked] == [(FAR, 443, 1), (FAR, 80, 1), (FAR, 2222, 1)]
    assert {(one["proxy"], one["user"]) for one in asked} == {(port, way_server.USERNAME)}
    assert all(one["peer"][0] != internet_ns.HOST_PUBLIC for one in ways.world.seen()[before[1] :])
    event = await ways.world.events(type="verdict", allowed=True, protocol="https", via=f"proxy.test:{port}")
    assert (event.name, event.address) == ("allowed.test", FAR)
    denied = await ways.world.run(ways.world.one, "show([fetch('wrong.test').get('status'), lookup('denied.test')[0]])")
    assert denied[0] == 502, "its certificate is verified as without a proxy"
    assert denied[1] != 0


@pytest.mark.parametrize(
    ("address", "more", "words"),
    [
        (f"{PROXY}:1089", {}, "cannot be reached"),
        (f"{PROXY}:{way_server.REFUSING}", {}, "refused: Connection not allowed by ruleset"),
        (f"{PROXY}:{way_server.PLAIN}", {}, "refused: No acceptable authentication methods"),
        (f"{PROXY}:{way_server.PLAIN}", {**CREDENTIALS, "username": "other"}, "refused: Username and password"),
        (f"{PROXY}:{way_server.PLAIN}", {**CREDENTIALS, "password": "${secrets.MISSING}"}, "no secret MISSING"),
        (f"{PROXY}:{way_server.TLS}", {**CREDENTIALS, "tls": True}, "no valid certificate"),
        (f"{PROXY}:{way_server.PLAIN}", {"tls": True}, "does not speak TLS"),
        (f"{PROXY}:2222", {}, "refused: Unexpected SOCKS version"),
        ("private.test:1080", {}, "addresses that may not be reached"),
    ],
)
async def test_without_the_proxy_nothing_leaves(ways: Ways, address: str, more: dict[str, object], words: str) -> None:
    """It fails closed: whatever is wrong with the proxy, no server is reached, and the record says what it was."""
    await ways.go(address, more)
    before = len(ways.world.seen("connection")), len(ways.world.seen("raw"))
    https, http, raw = await ways.world.run(ways.world.one, ALL)
    assert (https.get("status"), http.get("status")) == (502, 502)
    assert raw != WHOLE
    arrived = ways.world.seen("connection")[before[0] :] + ways.world.seen("raw")[before[1] :]
    assert all(one["local"][0] == PROXY for one in arrived)
    generation = ways.world.generations[ways.world.one.sandbox]
    for protocol in ("https", "http", "tcp"):
        event = await ways.world.events(type="verdict", allowed=False, protocol=protocol, generation=generation)
        assert words in event.why, event.why
        assert (event.via, event.address) == (address, FAR)
        assert CANARY not in event.model_dump_json()


async def test_what_is_never_reached_is_not_reached_through_a_proxy(ways: Ways) -> None:
    """Names that lead to metadata or private addresses; and a proxy in a private network has to be named as such."""
    await ways.go(f"{PROXY}:{way_server.OPEN}")
    before = len(ways.asked())
    answer = await ways.world.run(ways.world.one, "show(fetch('metadata.test').get('status'))")
    assert answer == 502
    assert len(ways.asked()) == before
    await ways.go(f"10.99.0.5:{way_server.OPEN}")
    assert (await ways.world.fetch(ways.world.one, "allowed.test"))["status"] == 200
    assert len(ways.asked()) == before + 1


async def test_a_change_of_way_ends_what_goes_by_the_other(ways: Ways) -> None:
    """Downloads and raw TCP; a change of rules that leaves them allowed ends none."""
    lines = """
s = connect("evil.test")
s.sendall(b"GET /slow HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n")
r = socket.create_connection((address_of("allowed.test"), 2222), 8)
import os, threading
def one(name, s, send):
    try:
        while True:
            if send: s.sendall(b"x"); threading.Event().wait(0.05)
            if not s.recv(4096): break
            os.write(1, name + b"\\n")
    except OSError: pass
threads = [threading.Thread(target=one, args=a) for a in ((b"get", s, False), (b"raw", r, True))]
[t.start() for t in threads]; [t.join() for t in threads]
print("all")
"""
    proxied = f"{PROXY}:{way_server.OPEN}"
    for first, then in ((None, proxied), (proxied, f"{PROXY}:{way_server.REFUSING}"), (proxied, None)):
        await ways.go(first)
        async with ways.world.running(ways.world.one, lines) as stream, asyncio.timeout(node_world.DEADLINE_S):
            await _both(stream)
            await ways.go(first, rules={"allow": RULES["allow"][:3]})
            await _both(stream)
            await _both(stream)
            await ways.go(then)
            while (line := (await stream.readline()).strip()) != b"all":
                assert line, "it ended without a word"


async def _both(stream: asyncio.StreamReader) -> None:
    """Wait until both have gone on."""
    wanted = {b"get", b"raw"}
    while wanted:
        line = (await stream.readline()).strip()
        assert line in (b"get", b"raw"), line
        wanted.discard(line)


async def test_only_the_egress_proxy_reaches_the_ways_through_a_proxy(ways: Ways) -> None:
    """No guest, and no other process of ours in the gateway's namespace; and what means nothing leads nowhere."""
    source = (
        "import os, socket, sys\nos.setuid(int(sys.argv[1]))\ns = socket.socket(); s.settimeout(0.4)\n"
        f"try: s.connect(('{ranges.TUNNELS[9]}', {EGRESS_TUNNEL_PORT})); print(s.recv(9))\n"
        "except OSError as e: print(type(e).__name__)"
    )
    layout = ways.world.layout
    place = netns.path(layout.gateway_netns)
    found = {}
    for uid in (layout.egress_uid, layout.ingress_uid, layout.edge_uid, 0):
        found[uid] = (await command.run("/usr/bin/python3", "-c", source, str(uid), netns=place)).stdout.strip()
    assert found.pop(layout.egress_uid) == "b''"
    assert set(found.values()) == {"TimeoutError"}
    for address in (nft.TAP, str(ranges.TUNNELS[9])):
        assert await ways.world.one.dial(address, EGRESS_TUNNEL_PORT) != "open"


async def test_a_policys_name_servers_are_asked_and_their_answers_screened(ways: Ways) -> None:
    """Over TCP; with the proxy or without. Other sandboxes' names are looked up as before."""
    world = ways.world
    lines = (
        "show([fetch('elsewhere.test', port=80, tls=False).get('status'), fetch('metadata.test').get('status'),\n"
        "fetch('allowed.test').get('status')])"
    )
    await ways.go(None)
    assert await world.run(world.one, lines) == [502, 502, 200]
    before = len(world.seen("dns"))
    await ways.go(None, rules={**RULES, "dns_servers": [RESOLVER]})
    assert await world.run(world.one, lines) == [200, 502, 502]
    assert {one["name"] for one in ways.asked("dns_tcp")} == {"elsewhere.test", "metadata.test", "allowed.test"}
    assert len(world.seen("dns")) == before
    await world.allow(world.two, {"allow": [{"host": "elsewhere.test", "protocol": "http"}]})
    assert (await world.fetch(world.two, "elsewhere.test", port=80, tls=False))["status"] == 502
    await ways.go(f"proxy.test:{way_server.OPEN}", rules={**RULES, "dns_servers": ["203.0.113.99", RESOLVER]})
    assert await world.run(world.one, lines) == [502, 502, 502], "the proxy's name is asked for there, too"
    await ways.go(f"{PROXY}:{way_server.OPEN}", rules={**RULES, "dns_servers": ["203.0.113.99", RESOLVER]})
    assert await world.run(world.one, lines) == [200, 502, 502], "one that does not answer is passed over"
