"""Slots and the gateway namespace: made, used by a hostile guest, destroyed, and nothing left."""

import asyncio
import contextlib
import os
import re
import statistics
import time
from collections.abc import AsyncGenerator, Callable

import pytest
from tests.support import node_world
from tests.support.node_world import PREVIEW_PORT, Guest

from space.host import command, netns
from space.host.command import CommandError
from space.layout import Layout
from space.net import addresses, gateway_ns, nft, slot
from space.net.pool import SlotPool
from space.wire.gateway import AGENT_INTERNAL_PORT, AGENT_ORDERS_PORT, AGENT_PORT

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")


@pytest.fixture(scope="module")
async def guests() -> AsyncGenerator[tuple[Layout, Guest, Guest]]:
    """Two guests in two slots."""
    with node_world.instance() as layout:
        async with (
            node_world.slots(layout, 2) as (first, second),
            node_world.guest(layout, first) as one,
            node_world.guest(layout, second) as two,
        ):
            yield layout, one, two


@pytest.fixture
async def gateway_only() -> AsyncGenerator[Layout]:
    """A gateway namespace without slots."""
    with node_world.instance() as layout:
        async with node_world.slots(layout, 0):
            yield layout


async def _counted(namespace: str, rule: str) -> int:
    """Return how many packets the rule that contains `rule` has counted."""
    done = await command.run("nft", "list", "ruleset", netns=netns.path(namespace))
    line = next(line for line in done.stdout.splitlines() if rule in line)
    return int(re.findall(r"packets (\d+)", line)[-1])


async def _dial_from(namespace: str, address: str, port: int, uid: int | None = None) -> str:
    source = (
        f"import os, socket\nos.setuid({uid or 0})\ns = socket.socket(); s.settimeout(0.4)\n"
        f"try: s.connect(({address!r}, {port})); print('open')\nexcept OSError as e: print(type(e).__name__)"
    )
    return (await command.run("/usr/bin/python3", "-c", source, netns=netns.path(namespace))).stdout.strip()


async def test_only_the_ingress_uid_reaches_a_guest_and_never_the_agents_internal_ports(
    guests: tuple[Layout, Guest, Guest],
) -> None:
    layout, one, _ = guests
    gateway, address = layout.gateway_netns, one.slot.address
    for port in (AGENT_PORT, PREVIEW_PORT):
        assert await _dial_from(gateway, address, port, layout.ingress_uid) == "open"
    assert await _dial_from(gateway, address, 22, layout.ingress_uid) == "ConnectionRefusedError"  # by the guest
    for port in (AGENT_ORDERS_PORT, AGENT_INTERNAL_PORT):
        assert await _dial_from(gateway, address, port, layout.ingress_uid) == "TimeoutError", port
    for uid in (0, layout.gateway_uid, layout.egress_uid, layout.edge_uid):
        for port in (AGENT_PORT, PREVIEW_PORT):
            assert await _dial_from(gateway, address, port, uid) == "TimeoutError"


async def test_a_slot_keeps_the_internal_ports_to_itself(guests: tuple[Layout, Guest, Guest]) -> None:
    """Even if the gateway namespace let everything out: what comes in looks to the agent like the worker."""
    layout, one, _ = guests
    gateway = netns.path(layout.gateway_netns)
    await nft.load(gateway, "insert rule inet space_gw outgoing accept")
    try:
        for port in (AGENT_PORT, PREVIEW_PORT):
            assert await _dial_from(layout.gateway_netns, one.slot.address, port) == "open"
        for port in (AGENT_ORDERS_PORT, AGENT_INTERNAL_PORT):
            assert await _dial_from(layout.gateway_netns, one.slot.address, port) == "TimeoutError", port
    finally:
        await gateway_ns.ensure(layout, "none", (), ())
    assert await _dial_from(layout.gateway_netns, one.slot.address, AGENT_PORT) == "TimeoutError"


async def test_a_guest_has_so_many_visitors_and_its_owner_a_way_in(guests: tuple[Layout, Guest, Guest]) -> None:
    layout, one, two = guests
    source = (
        f"import os, socket\nos.setuid({layout.ingress_uid})\nheld = []\n"
        "def dial(address, port):\n"
        " s = socket.socket(); s.settimeout(5)\n"
        " try: s.connect((address, port)); held.append(s); return 'open'\n"
        " except OSError as e: return os.strerror(e.errno or 0)\n"
        f"said = [dial({one.slot.address!r}, {PREVIEW_PORT}) for _ in range({nft.INCOMING} + 1)]\n"
        "print(len(held), said[-1], sep='|')\n"
        f"print(dial({one.slot.address!r}, 22), dial({one.slot.address!r}, {AGENT_PORT}), sep='|')\n"
        f"print(dial({two.slot.address!r}, {PREVIEW_PORT}))\n"
        "for s in held: s.close()"
    )
    done = await command.run("/usr/bin/python3", "-c", source, netns=netns.path(layout.gateway_netns), timeout_s=60)
    full, owner, other = done.stdout.splitlines()
    assert full == f"{nft.INCOMING}|No route to host"
    assert owner == "No route to host|open"  # a port of any number counts as a visit
    assert other == "open"
    async with asyncio.timeout(30):
        while await _dial_from(layout.gateway_netns, one.slot.address, PREVIEW_PORT, layout.ingress_uid) != "open":
            await asyncio.sleep(0.1)


async def test_the_worker_reaches_the_internal_ports_from_inside_the_slot(guests: tuple[Layout, Guest, Guest]) -> None:
    _, one, _ = guests
    for port in (AGENT_ORDERS_PORT, AGENT_INTERNAL_PORT):
        with netns.tcp_socket(netns.path(one.slot.netns)) as connection:
            async with asyncio.timeout(5):
                await asyncio.get_running_loop().sock_connect(connection, (nft.GUEST, port))
            assert connection.getsockname()[0] == nft.TAP


async def test_a_guest_reaches_nothing(guests: tuple[Layout, Guest, Guest]) -> None:
    _, one, two = guests
    targets = [
        (nft.TAP, AGENT_PORT), *((nft.TAP, port) for port in (AGENT_ORDERS_PORT, AGENT_INTERNAL_PORT)), (nft.TAP, 53),
        (one.slot.address, AGENT_PORT), (one.slot.gateway_address, 15001), (one.slot.gateway_address, 53),
        *((two.slot.address, port) for port in (AGENT_PORT, AGENT_ORDERS_PORT, AGENT_INTERNAL_PORT)),
        (two.slot.gateway_address, 22),
        ("169.254.169.254", 80), ("198.18.0.1", 443), ("203.0.113.1", 443), ("10.0.0.1", 22),
    ]  # fmt: skip
    for address, port in targets:
        assert await one.dial(address, port) == "ConnectionRefusedError", f"{address}:{port}"
    for address in (nft.TAP, one.slot.gateway_address, "203.0.113.1"):
        assert await one.python(
            "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)\n"
            f"s.connect(({address!r}, 123)); s.send(b'x')\n"
            "try: print(s.recv(1))\nexcept OSError as e: print(type(e).__name__)"
        ) == "TimeoutError", address  # fmt: skip


async def test_a_forged_source_is_dropped_and_counted_at_the_tap(guests: tuple[Layout, Guest, Guest]) -> None:
    _, one, two = guests
    before = await _counted(one.slot.netns, f"ip saddr != {nft.GUEST}")
    await command.run("ip", "-n", one.netns, "address", "add", f"{two.slot.address}/32", "dev", "lo")
    try:
        assert await one.python(
            f"import socket\ns = socket.socket(); s.settimeout(1); s.bind(({two.slot.address!r}, 0))\n"
            f"try: s.connect(({nft.TAP!r}, 80))\nexcept OSError as e: print(type(e).__name__)"
        ) == "TimeoutError"  # fmt: skip
    finally:
        await command.run("ip", "-n", one.netns, "address", "delete", f"{two.slot.address}/32", "dev", "lo")
    assert await _counted(one.slot.netns, f"ip saddr != {nft.GUEST}") > before


async def test_a_source_of_another_slot_is_dropped_at_the_gateway(guests: tuple[Layout, Guest, Guest]) -> None:
    """Even from inside a slot's namespace (where no guest is), a link carries its own address only."""
    layout, one, two = guests
    before = await _counted(layout.gateway_netns, 'comment "forged"')
    await command.run(
        "/usr/bin/python3", "-c",
        # past the slot's own translation, as nothing of a guest ever gets
        "import socket, struct\n"
        "s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(('up0', 0x0800))\n"
        "ends = bytes.fromhex('060064400000060064400001')\n"
        f"source, target = map(socket.inet_aton, ({two.slot.address!r}, {one.slot.gateway_address!r}))\n"
        "ip = struct.pack('>BBHHHBBH4s4s', 0x45, 0, 28, 1, 0, 64, 17, 0, source, target)\n"
        "total = sum(struct.unpack('>10H', ip)); total = (total & 0xffff) + (total >> 16)\n"
        "ip = ip[:10] + struct.pack('>H', ~total & 0xffff) + ip[12:]\n"
        "s.send(ends + b'\\x08\\x00' + ip + struct.pack('>HHHH', 1000, 53, 8, 0))",
        netns=netns.path(one.slot.netns),
    )  # fmt: skip
    assert await _counted(layout.gateway_netns, 'comment "forged"') > before


async def test_ipv6_and_fragments_do_not_enter_a_slot(guests: tuple[Layout, Guest, Guest]) -> None:
    _, one, _ = guests
    for name in ("all", "tap0", "up0"):
        done = await command.run(
            "cat", f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", netns=netns.path(one.slot.netns)
        )
        assert done.stdout.strip() == "1", name
    before = await _counted(one.slot.netns, "ip frag-off")
    await one.python(
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.setsockopt(socket.IPPROTO_IP, 10, 0)\n"  # IP_MTU_DISCOVER: let it fragment
        f"s.sendto(bytes(4000), ({nft.TAP!r}, 53))"
    )
    assert await _counted(one.slot.netns, "ip frag-off") > before


async def test_applying_the_gateway_again_keeps_live_connections(guests: tuple[Layout, Guest, Guest]) -> None:
    layout, one, _ = guests
    source = (
        f"import os, socket, sys\nos.setuid({layout.ingress_uid})\n"
        f"s = socket.create_connection(({one.slot.address!r}, {AGENT_PORT}), 2)\nprint('up', flush=True)\n"
        "sys.stdin.readline(); s.sendall(b'GET /health HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n"
        "print(s.recv(12))"
    )
    process = await asyncio.create_subprocess_exec(
        *command.in_netns(netns.path(layout.gateway_netns), ("/usr/bin/python3", "-c", source)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    assert await process.stdout.readline() == b"up\n"
    await gateway_ns.ensure(layout, "none", (), ())
    out, _err = await process.communicate(b"\n")
    assert out == b"b'HTTP/1.1 200'\n"
    assert await _dial_from(layout.gateway_netns, one.slot.address, AGENT_PORT, layout.ingress_uid) == "open"


async def test_twenty_slots_come_and_go_without_a_trace(
    gateway_only: Layout, record_testsuite_property: Callable[[str, object], None]
) -> None:
    layout = gateway_only
    host_links = (await command.run("ip", "-brief", "link")).stdout
    made_ms, gone_ms = [], []
    for number in range(1, 21):
        begin = time.perf_counter()
        await slot.make(layout, number)
        between = time.perf_counter()
        assert (await command.run("ip", "-brief", "link")).stdout == host_links
        taken = time.perf_counter()
        await slot.destroy(layout, number)
        made_ms.append(1000 * (between - begin))
        gone_ms.append(1000 * (time.perf_counter() - taken))
    record_testsuite_property("slot_make_ms", statistics.median(made_ms))
    record_testsuite_property("slot_destroy_ms", statistics.median(gone_ms))
    assert slot.existing(layout) == set()
    assert netns.names(layout.netns_prefix) == [layout.gateway_netns]
    links = (await command.run("ip", "-n", layout.gateway_netns, "-brief", "link")).stdout
    assert "sl" not in links
    rules = await command.run("nft", "list", "set", "inet", "space_gw", "slots", netns=netns.path(layout.gateway_netns))
    assert "elements" not in rules.stdout


async def test_a_slot_of_an_older_version_is_taken_apart(gateway_only: Layout) -> None:
    path = netns.path(gateway_only.gateway_netns)
    older = "delete table inet space_gw\ntable inet space_gw {\n set slots {\n type ifname . ipv4_addr\n }\n}\n"
    await nft.load(path, older)
    await nft.remove_slot(path, "sl7", "100.64.0.15")


async def test_half_made_slots_are_taken_apart_twice(gateway_only: Layout) -> None:
    layout = gateway_only
    await command.run("ip", "netns", "add", layout.slot_netns(7))
    await slot.make(layout, 8)
    await command.run("ip", "-n", layout.slot_netns(8), "link", "delete", "up0")
    await slot.make(layout, 9)
    await netns.delete(layout.slot_netns(9))
    assert slot.existing(layout) == {7, 8}
    for number in (7, 8, 9, 7, 8, 9):
        await slot.destroy(layout, number)
    assert slot.existing(layout) == set()


async def test_cancelled_while_being_made_leaves_nothing(gateway_only: Layout) -> None:
    layout = gateway_only
    for patience_s in (0.001, 0.004, 0.008, 0.012, 0.016):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await slot.make(layout, 5)
            await slot.destroy(layout, 5)  # it was made in time
        assert slot.existing(layout) == set()
        links = (await command.run("ip", "-n", layout.gateway_netns, "-brief", "link")).stdout
        assert "sl5" not in links


async def test_a_tap_is_opened_once_and_only_where_there_is_one(gateway_only: Layout) -> None:
    layout = gateway_only
    made = await slot.make(layout, 3)
    descriptor = slot.open_tap(made)
    try:
        with pytest.raises(OSError, match="busy"):
            slot.open_tap(made)
    finally:
        os.close(descriptor)
    await command.run("ip", "-n", made.netns, "link", "delete", "tap0")
    with pytest.raises(OSError, match="interface"):
        slot.open_tap(made)


async def test_the_pool_hands_each_slot_out_once_and_leaves_none(gateway_only: Layout) -> None:
    layout = gateway_only
    pool = SlotPool(layout, 2)
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(pool.run())
        await node_world.eventually(lambda: len(slot.existing(layout)) == 2)
        takes = [group.create_task(pool.take()) for _ in range(5)]
        taken = [await take for take in takes]
        assert len({made.number for made in taken}) == 5
        await node_world.eventually(lambda: len(slot.existing(layout)) == 7)
        loop.cancel()
    for made in taken:
        await slot.destroy(layout, made.number)
    await node_world.eventually(lambda: slot.existing(layout) == set())
    assert addresses.numbers(layout).take() > max(made.number for made in taken)


async def test_without_a_gateway_namespace_making_fails_cleanly() -> None:
    with node_world.instance() as layout:
        with pytest.raises(CommandError):
            await slot.make(layout, 1)
        assert netns.names(layout.netns_prefix) == []
