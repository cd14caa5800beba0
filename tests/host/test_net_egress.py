"""A guest's way out: what reaches the gateway, what reaches the uplink, and what nothing gets past (EGRESS.md).

Servers that say who came stand where the egress proxy and the gateway listen; the uplink leads to a host of the test's
own. Oracles are those servers, counters of the rules, and packets sniffed at the uplink.
"""

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import AsyncGenerator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from tests.support import internet_ns, node_world
from tests.support.internet_ns import HOST_PRIVATE, HOST_PUBLIC, METADATA, NETWORK, RESOLVER, Outside
from tests.support.node_world import Guest

from space.host import command, netns
from space.layout import Layout
from space.net import gateway_ns, nft, slot, uplink
from space.net.openings import Openings, Target
from space.wire.gateway import AGENT_PORT, EGRESS_DNS_PORT, EGRESS_HTTP_PORT, EGRESS_RELAY_PORT

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")
SERVER = Path(node_world.__file__).with_name("echo_server.py")
SYNTHETIC = "198.18.0.7"
FAR = "203.0.113.20"


@contextlib.asynccontextmanager
async def listening(namespace: Path, uid: int, *ports: tuple[str, str, int]) -> AsyncGenerator[None]:
    """Servers in a namespace, for as long as the context lasts."""
    words = [str(word) for port in ports for word in port]
    process = await asyncio.create_subprocess_exec(
        *command.in_netns(namespace, ("/usr/bin/python3", str(SERVER), str(uid), *words)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout
        async with asyncio.timeout(20):
            assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        await process.wait()


class World:
    """Two guests, a gateway namespace with servers in it, a host and an internet behind the uplink."""

    def __init__(self, layout: Layout, one: Guest, two: Guest, beyond: Outside) -> None:
        self.layout, self.one, self.two, self.beyond = layout, one, two, beyond
        self.gateway = netns.path(layout.gateway_netns)
        self.openings = Openings(self.gateway)

    async def ask(self, guest: Guest, address: str, port: int) -> dict[str, Any] | str:
        """Connect from a guest; returns what the server said, or the name of the error."""
        told = await guest.python(
            f"import socket\ns = socket.socket(); s.settimeout(15)\n"
            f"try: s.connect(({address!r}, {port})); print(s.makefile().readline())\n"
            f"except OSError as e: print(type(e).__name__)"
        )
        return json.loads(told) if told.startswith("{") else told

    async def leave(self, uid: int, address: str, port: int) -> dict[str, Any] | str:
        """Connect from the gateway namespace as a user; returns what the server said, or the name of the error."""
        source = (
            f"import os, socket\nos.setuid({uid})\ns = socket.socket(); s.settimeout(0.5)\n"
            f"try: s.connect(({address!r}, {port})); print(s.makefile().readline())\n"
            f"except OSError as e: print(type(e).__name__)"
        )
        done = await command.run("/usr/bin/python3", "-c", source, netns=self.gateway)
        told = done.stdout.strip()
        return json.loads(told) if told.startswith("{") else told


@pytest.fixture(scope="module")
async def world() -> AsyncGenerator[World]:
    """The world, with the servers in place."""
    async with contextlib.AsyncExitStack() as stack:
        layout = stack.enter_context(node_world.instance())
        beyond = await stack.enter_async_context(internet_ns.outside())
        first, second = await stack.enter_async_context(
            node_world.slots(layout, 2, beyond.host, (RESOLVER,), (NETWORK,))
        )
        one = await stack.enter_async_context(node_world.guest(layout, first))
        two = await stack.enter_async_context(node_world.guest(layout, second))
        here = netns.path(layout.gateway_netns)
        proxy = ("tcp", "0.0.0.0", EGRESS_HTTP_PORT)
        ours = [(kind, "0.0.0.0", port) for kind, port in (
            ("tcp", EGRESS_RELAY_PORT), ("tcp", EGRESS_DNS_PORT), ("udp", EGRESS_DNS_PORT)
        )]  # fmt: skip
        await stack.enter_async_context(listening(here, layout.egress_uid, proxy))
        await stack.enter_async_context(listening(here, layout.gateway_uid, *ours))
        services = [("tcp", "0.0.0.0", port) for port in (22, 53, 80, 443, 9000)]
        await stack.enter_async_context(listening(beyond.internet_path, 0, *services, ("udp", str(RESOLVER), 53)))
        await stack.enter_async_context(listening(beyond.host_path, 0, *services, ("udp", HOST_PUBLIC, 53)))
        yield World(layout, one, two, beyond)


async def counted(namespace: Path, rule: str) -> int:
    """Return how many packets the rules that contain `rule` have counted."""
    done = await command.run("nft", "list", "ruleset", netns=namespace)
    lines = [line for line in done.stdout.splitlines() if rule in line]
    found = [int(number) for line in lines for number in re.findall(r"counter packets (\d+)", line)]
    assert found, rule
    return sum(found)


async def tracked(namespace: Path) -> int:
    """Return how many connections a namespace keeps track of."""
    return int((await command.run("cat", "/proc/sys/net/netfilter/nf_conntrack_count", netns=namespace)).stdout)


async def test_m5_only_synthetic_addresses_reach_the_proxy_and_the_rest_is_refused_aloud(world: World) -> None:
    """M5: every TCP destination used to be redirected, so that every port looked open."""
    told = await world.ask(world.one, SYNTHETIC, 443)
    assert isinstance(told, dict), told
    assert (told["from"], told["wanted"]) == (world.one.slot.address, f"{SYNTHETIC}:443")
    refused = [
        (FAR, 443), (HOST_PUBLIC, 22), (HOST_PRIVATE, 22), (METADATA, 80), ("127.0.0.1", 80), ("10.0.0.1", 22),
        (world.two.slot.address, AGENT_PORT), (world.two.slot.gateway_address, EGRESS_HTTP_PORT),
        (world.one.slot.gateway_address, EGRESS_HTTP_PORT), (world.one.slot.gateway_address, EGRESS_RELAY_PORT),
        (world.one.slot.gateway_address, EGRESS_DNS_PORT), (nft.TAP, EGRESS_HTTP_PORT),
    ]  # fmt: skip
    for address, port in refused:
        assert await world.ask(world.one, address, port) == "ConnectionRefusedError", f"{address}:{port}"


async def test_m5_raw_targets_reach_the_relay_of_their_slot_only(world: World) -> None:
    """M5: a raw port is chosen by (slot, address, port), before the redirect to the proxy."""
    name = Target(IPv4Network("198.18.0.9/32"), 22, 22)
    listed = Target(IPv4Network("203.0.113.16/28"), 8000, 9000)
    slot_address = world.one.slot.address
    await world.openings.replace(slot_address, {name, listed})
    try:
        for address, port in (("198.18.0.9", 22), (FAR, 9000)):
            told = await world.ask(world.one, address, port)
            assert isinstance(told, dict), told
            assert (told["from"], told["wanted"]) == (slot_address, f"{address}:{port}")
        for address, port in (("198.18.0.9", 443), ("198.18.0.10", 22)):  # these are the proxy's
            assert isinstance(await world.ask(world.one, address, port), dict)
        assert await world.ask(world.two, FAR, 9000) == "ConnectionRefusedError"
        assert await world.ask(world.one, FAR, 9001) == "ConnectionRefusedError"
        await world.openings.replace(slot_address, set())
        assert await world.ask(world.one, FAR, 9000) == "ConnectionRefusedError"
    finally:
        await world.openings.replace(slot_address, set())


async def test_overlapping_targets_are_loaded_and_taken_back(world: World) -> None:
    """nft refuses intervals that overlap; a policy may have them."""
    network = IPv4Network
    wide = {Target(network("203.0.113.0/24"), 1, 65535), Target(network("203.0.113.16/28"), 80, 443)}
    ports = {Target(network("10.1.0.0/16"), 100, 200), Target(network("10.1.2.0/24"), 150, 300)}
    for targets in (wide, wide | ports, ports, set[Target]()):
        await world.openings.replace(world.one.slot.address, targets)
        await world.openings.replace(world.two.slot.address, targets)
    for name in ("raw", "cidr", "private_ok"):
        told = await command.run("nft", "list", "set", "inet", "space_gw", name, netns=world.gateway)
        assert "elements" not in told.stdout, told.stdout


async def test_m6_dns_reaches_the_gateway_by_udp_and_tcp_whichever_server_is_asked(world: World) -> None:
    """M6: DNS over TCP went to the HTTP proxy. D-07: a foreign resolver's address is ours, too."""
    for address in (nft.TAP, "8.8.8.8", str(RESOLVER), HOST_PUBLIC):
        told = await world.ask(world.one, address, 53)
        assert isinstance(told, dict), (address, told)
        assert told["from"] == world.one.slot.address
        answer = await world.one.python(
            "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3)\n"
            f"s.connect(({address!r}, 53)); s.send(b'x'); print(s.recv(999).decode())"
        )
        assert json.loads(answer)["from"] == world.one.slot.address


async def test_c4_the_output_chain_knows_each_process_by_its_user(world: World) -> None:
    """C4 d: Python's screening must not be the only thing between a guest and metadata, host and private networks."""
    layout = world.layout
    for uid in (layout.egress_uid, layout.gateway_uid):
        told = await world.leave(uid, FAR, 443)
        assert isinstance(told, dict), told  # the control: both may leave
        for address in (HOST_PUBLIC, HOST_PRIVATE, "10.99.0.5", METADATA, "169.254.96.0"):
            assert await world.leave(uid, address, 80) == "TimeoutError", address
        for guest in (world.one, world.two):
            assert await world.leave(uid, guest.slot.address, AGENT_PORT) == "TimeoutError"
    for uid in (0, layout.ingress_uid, layout.edge_uid):
        assert await world.leave(uid, FAR, 443) == "TimeoutError", uid


async def test_only_the_gateway_asks_the_resolvers(world: World) -> None:
    source = (
        "import os, socket, sys\nos.setuid(int(sys.argv[1]))\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.5)\n"
        "try: s.connect((sys.argv[2], int(sys.argv[3]))); s.send(b'x'); print(s.recv(99)[:1])\n"
        "except OSError as e: print(type(e).__name__)"
    )

    async def query(uid: int, address: str, port: int = 53) -> str:
        argv = ("/usr/bin/python3", "-c", source, str(uid), address, str(port))
        return (await command.run(*argv, netns=world.gateway)).stdout.strip()

    assert await query(world.layout.gateway_uid, str(RESOLVER)) == "b'{'"
    assert await query(world.layout.gateway_uid, HOST_PUBLIC) != "b'{'"
    assert await query(world.layout.egress_uid, str(RESOLVER)) != "b'{'"


async def test_nothing_that_comes_over_the_uplink_ends_at_the_host(world: World) -> None:
    """Oracle: the far end's own rules, with everything that the gateway namespace forbids let out."""
    await nft.load(world.gateway, "insert rule inet space_gw outgoing accept")
    try:
        assert isinstance(await world.leave(0, FAR, 443), dict)
        for address in (HOST_PUBLIC, HOST_PRIVATE, METADATA, "169.254.96.0"):
            assert await world.leave(0, address, 80) == "TimeoutError", address
        # an address that the host gets later is one of its own at once
        await command.run("ip", "-n", world.beyond.host, "address", "add", "198.51.100.9/32", "dev", "lo")
        assert await world.leave(0, "198.51.100.9", 80) == "TimeoutError"
    finally:
        await command.run(
            "ip", "-n", world.beyond.host, "address", "delete", "198.51.100.9/32", "dev", "lo", check=False
        )
        await gateway_ns.ensure(world.layout, world.beyond.host, (RESOLVER,), (NETWORK,))


async def test_what_leaves_has_the_hosts_address_and_nothing_comes_in(world: World) -> None:
    told = await world.leave(world.layout.egress_uid, FAR, 443)
    assert isinstance(told, dict)
    assert told["from"] == HOST_PUBLIC
    _far, near = uplink.addresses(world.layout)
    await command.run("ip", "-n", world.beyond.internet, "route", "add", f"{near}/32", "via", HOST_PUBLIC, "dev", "in0")
    source = (
        f"import socket\ns = socket.socket(); s.settimeout(0.5)\n"
        f"try: s.connect(({str(near)!r}, {EGRESS_HTTP_PORT})); print('open')\n"
        f"except OSError as e: print(type(e).__name__)"
    )
    for path in (world.beyond.internet_path, world.beyond.host_path):
        done = await command.run("/usr/bin/python3", "-c", source, netns=path)
        assert done.stdout.strip() == "TimeoutError"


async def test_c4_packets_for_a_slot_that_is_gone_do_not_leave(world: World) -> None:
    """C4 b: SYNs to a dead slot's address left on the uplink. Oracle: a sniffer at the host's end of it."""
    source = (
        "import socket, sys\ns = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))\n"
        f"s.bind(({uplink.link_name(world.layout)!r}, 0)); s.settimeout(0.3); print('ready', flush=True)\n"
        "sys.stdin.readline(); seen = []\n"
        "try:\n while True: seen.append(s.recv(99)[30:34])\nexcept OSError: pass\n"
        "print([socket.inet_ntoa(d) for d in seen])"
    )
    sniffer = await asyncio.create_subprocess_exec(
        *command.in_netns(world.beyond.host_path, ("/usr/bin/python3", "-c", source)),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert sniffer.stdout
    assert await sniffer.stdout.readline() == b"ready\n"
    assert isinstance(await world.leave(world.layout.egress_uid, FAR, 443), dict)
    for uid in (world.layout.egress_uid, world.layout.ingress_uid, world.layout.gateway_uid):
        for address in ("100.64.7.7", "198.18.0.77"):
            assert not isinstance(await world.leave(uid, address, AGENT_PORT), dict)
    out, _ = await sniffer.communicate(b"\n")
    seen = set(json.loads(out.decode().replace("'", '"')))
    assert FAR in seen  # the control
    assert not {address for address in seen if address.startswith(("100.64.", "198.18."))}, seen


async def test_h1_a_flood_of_syn_is_dropped_before_it_is_tracked(world: World) -> None:
    """H1: 300,000 SYNs filled the connection tables. Oracle: the slot's own table, and the gateway's.

    The guest floods until the rule has counted so many: its tap holds 500 frames and drops what comes meanwhile, so how
    many of a fixed number reach the slot depends on how often the test's pump is let run.
    """
    source = (
        "import itertools, socket, struct\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)\n"
        f"source, target = map(socket.inet_aton, ({nft.GUEST!r}, {SYNTHETIC!r}))\n"
        "for n in itertools.count():\n"
        " tcp = struct.pack('>HHLLBBHHH', 1024 + n % 60000, 443, n % 2**32, 0, 0x50, 2, 1024, 0, 0)\n"
        " fake = source + target + struct.pack('>BBH', 0, 6, 20) + tcp\n"
        " total = sum(struct.unpack('>%dH' % (len(fake) // 2), fake))\n"
        " total = (total & 0xffff) + (total >> 16); total += total >> 16\n"
        " s.sendto(tcp[:16] + struct.pack('>H', ~total & 0xffff) + tcp[18:], (socket.inet_ntoa(target), 0))"
    )
    rule, place = "limit rate over 200/second burst 400", netns.path(world.one.slot.netns)
    before, had = await counted(place, rule), {path: await tracked(path) for path in (place, world.gateway)}
    began = time.monotonic()
    flood = await asyncio.create_subprocess_exec(
        *command.in_netns(netns.path(world.one.netns), ("/usr/bin/python3", "-c", source))
    )
    try:
        async with asyncio.timeout(60):
            while await counted(place, rule) < before + 1000:
                await asyncio.sleep(0.02)
    finally:
        flood.kill()
        await flood.wait()
    for path in (place, world.gateway):
        # what the rule lets through, however long the flood took on a busy host, and what else goes on here
        assert await tracked(path) <= had[path] + 400 + 200 * (time.monotonic() - began) + 100
    assert isinstance(await world.ask(world.two, SYNTHETIC, 443), dict)


async def test_h1_one_guest_has_so_many_connections_and_no_more(world: World) -> None:
    """H1: Envoy has no limit of connections for one source."""
    source = (
        "import socket, time\nopen_ones, refused = [], 0\n"
        f"for n in range({nft.CONNECTIONS} + 100):\n"
        " s = socket.socket(); s.settimeout(5)\n"
        f" try: s.connect(({SYNTHETIC!r}, 443)); open_ones.append(s)\n"
        " except ConnectionRefusedError: refused += 1\n"
        " except OSError: time.sleep(0.05)\n"
        " time.sleep(0.003)\n"
        "print(len(open_ones), refused)"
    )
    rule = f"ct count over {nft.CONNECTIONS}"
    opened, refused = map(int, (await world.two.python(source)).split())
    assert refused > 50
    assert opened < nft.CONNECTIONS + 50  # the kernel forgets closed ones in its own time
    assert await counted(netns.path(world.two.slot.netns), rule) >= refused
    assert isinstance(await world.ask(world.one, SYNTHETIC, 443), dict)


async def test_m10_a_connection_of_another_life_is_reset(world: World) -> None:
    """M10: with a plain drop the client of a restored guest hung. C4 c: no packet but a SYN opens anything."""
    source = (
        "import socket, struct\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP); s.settimeout(3)\n"
        f"source, target = map(socket.inet_aton, ({nft.GUEST!r}, {SYNTHETIC!r}))\n"
        "tcp = struct.pack('>HHLLBBHHH', 40123, 443, 5, 7, 0x50, 0x18, 1024, 0, 0)\n"
        "fake = source + target + struct.pack('>BBH', 0, 6, 20) + tcp\n"
        "total = sum(struct.unpack('>%dH' % (len(fake) // 2), fake))\n"
        "total = (total & 0xffff) + (total >> 16); total += total >> 16\n"
        "s.sendto(tcp[:16] + struct.pack('>H', ~total & 0xffff) + tcp[18:], (socket.inet_ntoa(target), 0))\n"
        "while True:\n"
        " got = s.recv(99)\n"
        " if got[20:24] == struct.pack('>HH', 443, 40123): print(got[33] & 4); break"
    )
    assert await world.one.python(source) == "4"


async def test_the_uplink_goes_and_comes_without_a_trace(world: World) -> None:
    layout, host = world.layout, world.beyond.host_path
    before = (await command.run("ip", "-brief", "link")).stdout
    await gateway_ns.ensure(layout, "none", (RESOLVER,), (NETWORK,))
    try:
        assert await world.leave(layout.egress_uid, FAR, 443) == "OSError"  # no route
        assert (await command.run("nft", "list", "tables", netns=host)).stdout.strip() == ""
        assert (await command.run("cat", "/proc/sys/net/ipv4/ip_forward", netns=host)).stdout.strip() == "0"
        links = (await command.run("ip", "-brief", "link", netns=host)).stdout
        assert "spaceup" not in links
    finally:
        await gateway_ns.ensure(layout, world.beyond.host, (RESOLVER,), (NETWORK,))
    assert isinstance(await world.leave(layout.egress_uid, FAR, 443), dict)
    assert (await command.run("ip", "-brief", "link")).stdout == before
    assert slot.existing(layout) == {1, 2}
