"""Raw TCP by its own way: servers that speak first, targets by name and by network, and what is not listed."""

import asyncio
import os
from collections.abc import AsyncGenerator

import pytest
from tests.support import egress_world, node_world
from tests.support.egress_world import World

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")

SPEAK = """
def speak(address, port):
    try:
        s = socket.create_connection((address, port), 5)
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
RAW = {"allow": [{"host": "allowed.test", "protocol": "tcp", "ports": [2222]}, {"host": "evil.test"}]}


@pytest.fixture(scope="module")
async def world() -> AsyncGenerator[World]:
    """All of it, once."""
    async with egress_world.world() as made:
        yield made


async def test_a_server_that_speaks_first_is_reached_by_name(world: World) -> None:
    """EGRESS M5: half-closed ends are passed on; other ports and other names of the same server are not raw."""
    await world.allow(world.one, RAW)
    answers = await world.run(
        world.one,
        SPEAK + "from concurrent.futures import ThreadPoolExecutor\n"
        "a, e = address_of('allowed.test'), address_of('evil.test')\n"
        "with ThreadPoolExecutor() as pool:\n"
        " spoken = list(pool.map(speak, (a, a, e, a), (2222, 2223, 2222, 22)))\n"
        "show([*spoken, fetch('allowed.test', address=a)])",
    )
    assert answers[0] == WHOLE
    assert WHOLE not in answers[1:]
    assert answers[4].get("status") != 200
    event = await world.events(type="verdict", protocol="tcp", name="allowed.test", port=2222)
    assert (event.allowed, event.address, event.rule) == (True, egress_world.FAR, 0)
    end = await world.events(type="traffic", of=event.seq)
    assert (end.sent_bytes, end.received_bytes) == (6, len("".join(WHOLE)))


async def test_a_listed_network_is_reached_by_address(world: World) -> None:
    await world.allow(world.one, {"allow": [{"cidr": "203.0.113.66/32", "protocol": "tcp", "ports": [2222]}]})
    lines = (
        SPEAK + "show([speak(a, p) for a, p in (('203.0.113.66', 2222), ('203.0.113.20', 2222), ('203.0.113.66', 80))])"
    )
    answers = await world.run(world.one, lines)
    assert answers[0] == WHOLE
    assert answers[1:] == ["ConnectionRefusedError"] * 2
    assert await world.run(world.two, SPEAK + "show(speak('203.0.113.66', 2222))") == "ConnectionRefusedError"


async def test_another_sandbox_gets_nothing_at_the_same_address(world: World) -> None:
    """EGRESS M5: what an address stands for is each sandbox's own; the redirect is the slot's own, too."""
    await world.allow(world.one, RAW)
    await world.allow(world.two, {"allow": [{"host": "evil.test"}]})
    address = await world.run(world.one, "show(address_of('allowed.test'))")
    before = len(world.seen("raw"))
    answer = await world.run(world.two, SPEAK + f"show(speak({address!r}, 2222))")
    assert answer != WHOLE
    assert len(world.seen("raw")) == before


async def test_a_new_policy_ends_the_connections_it_refuses(world: World) -> None:
    """EGRESS H7 for raw TCP: the gateway ends its own."""
    both = {"allow": [{"host": name, "protocol": "tcp", "ports": [2222]} for name in ("allowed.test", "evil.test")]}
    await world.allow(world.one, both)
    lines = """
s = socket.create_connection((address_of(NAME), 2222), 5)
import time
try:
    while True:
        s.sendall(b"x")
        if not s.recv(100): break
        print(1)
        time.sleep(0.05)
except OSError: pass
print("end")
"""
    async with (
        world.running(world.one, lines.replace("NAME", "'evil.test'")) as doomed,
        world.running(world.one, lines.replace("NAME", "'allowed.test'")) as kept,
    ):
        async with asyncio.timeout(node_world.DEADLINE_S):
            for stream in (doomed, kept):
                assert (await stream.readline()).strip() == b"1"
            await world.allow(world.one, RAW)
            while (await doomed.readline()).strip() == b"1":
                pass
            for _ in range(20):
                assert (await kept.readline()).strip() == b"1"


async def test_a_rules_bytes_are_counted_and_end_a_connection(world: World) -> None:
    rule = {"host": "allowed.test", "protocol": "tcp", "ports": [2222], "limits": {"upload_bytes": 100_000}}
    await world.allow(world.one, {"allow": [rule]})
    answer = await world.run(
        world.one,
        """
import threading
s = socket.create_connection((address_of("allowed.test"), 2222), 5)
threading.Thread(target=lambda: [None for _ in iter(lambda: s.recv(65536), b"")], daemon=True).start()
sent = 0
try:
    while sent < 10_000_000: sent += s.send(bytes(10_000))
    ended = False
except OSError: ended = True
again = socket.create_connection((address_of("allowed.test"), 2222), 5)
again.settimeout(5)
try: first = again.recv(100).decode()
except OSError as error: first = type(error).__name__
show([ended, first])
""",
    )
    assert answer[0] is True
    assert answer[1] != "220 ready\n"
