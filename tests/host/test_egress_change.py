"""What a change of policy, a restart of a part, or a flood does to a guest's traffic that is under way."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator

import pytest
from tests.support import egress_world, node_world
from tests.support.egress_world import World

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")

BOTH = {"allow": [{"host": "allowed.test"}, {"host": "evil.test", "websocket": True}]}
ONE = {"allow": [{"host": "allowed.test"}]}


@pytest.fixture(scope="module")
async def world() -> AsyncGenerator[World]:
    """All of it, once."""
    async with egress_world.world() as made:
        yield made


DOWNLOAD = """
s = connect("{name}")
s.sendall(b"GET /slow HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n")
try:
    while data := s.recv(4096): print(len(data))
    print("end")
except OSError as e: print(type(e).__name__)
"""
WEBSOCKET = """
s = connect("{name}")
s.sendall(b"GET /ws HTTP/1.1\\r\\nHost: {name}\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n"
          b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n")
assert b" 101 " in s.recv(4096)
try:
    while True:
        s.sendall(b"x")
        if not s.recv(1): break
        print(1)
        time.sleep(0.05)
    print("end")
except OSError as e: print(type(e).__name__)
"""
UPLOAD = """
s = connect("{name}")
s.sendall(b"PUT /upload HTTP/1.1\\r\\nHost: {name}\\r\\nContent-Length: 1000000000\\r\\n\\r\\n")
try:
    while True:
        s.sendall(bytes(10000))
        print(1)
        time.sleep(0.02)
except OSError as e: print(type(e).__name__)
"""


async def _goes_on(stream: asyncio.StreamReader, lines: int = 20) -> None:
    async with asyncio.timeout(node_world.DEADLINE_S):
        for _ in range(lines):
            line = (await stream.readline()).decode().strip()
            assert line.isdigit(), line


async def _ends(stream: asyncio.StreamReader) -> None:
    async with asyncio.timeout(node_world.DEADLINE_S):
        while (line := (await stream.readline()).decode().strip()).isdigit():
            pass
    assert line, "it ended without a word"
    assert line != "TimeoutError", "it did not end"


async def test_tightening_ends_what_is_no_longer_allowed_and_nothing_else(world: World) -> None:
    """EGRESS H7, case P-01: download, WebSocket and upload of the removed rule end; the other rule's go on."""
    await world.allow(world.one, BOTH)
    async with contextlib.AsyncExitStack() as stack:

        async def start(lines: str, name: str) -> asyncio.StreamReader:
            program = "import time\n" + lines.replace("{name}", name)
            return await stack.enter_async_context(world.running(world.one, program))

        doomed = [await start(lines, "evil.test") for lines in (DOWNLOAD, WEBSOCKET, UPLOAD)]
        kept = [await start(lines, "allowed.test") for lines in (DOWNLOAD, UPLOAD)]
        for stream in (*doomed, *kept):
            await _goes_on(stream, 5)
        await world.allow(world.one, ONE)
        for stream in doomed:
            await _ends(stream)
        for stream in kept:
            await _goes_on(stream, 20)
        # the other ends are told, too
        await node_world.eventually(lambda: len(world.seen("ended")) >= 3)
        answer = await world.run(world.one, "show(lookup('evil.test'))")
        assert answer == [5, []]


async def test_idle_connections_of_a_removed_rule_end_too(world: World) -> None:
    """H7: the last request of a connection counts, so that none is left open to a name that is denied now."""
    await world.allow(world.one, BOTH)
    lines = """
s = connect("evil.test")
print(fetch("evil.test", "/idle", on=s)["status"])
try: print("end" if not s.recv(1) else "data")
except OSError as e: print(type(e).__name__)
"""
    async with world.running(world.one, lines) as stream:
        assert (await stream.readline()).strip() == b"200"
        judged = await world.events(type="verdict", path="/idle")
        await world.events(type="traffic", of=judged.seq)  # until this is told, it counts as being under way
        await world.allow(world.one, ONE)
        await _ends(stream)


async def test_a_gateway_that_is_gone_lets_nothing_out_and_comes_back_with_the_policy(world: World) -> None:
    """Case P-07: 503 while it is away, no handshake for a new name; afterwards the policy holds from the first byte."""
    await world.allow(world.one, ONE)
    assert (await world.fetch(world.one, "allowed.test"))["status"] == 200
    address = await world.run(world.one, "show(address_of('allowed.test'))")
    async with world.running(world.one, DOWNLOAD.replace("{name}", "allowed.test")) as download:
        await _goes_on(download, 3)
        world.gateway.send(signal.SIGKILL)
        await world.gateway.wait()
        before = len(world.seen())
        gone = await world.fetch(world.one, "allowed.test", address=address)
        assert gone["status"] == 503
        assert gone["json"]["code"] == "unavailable"
        assert "error" in await world.fetch(world.one, "denied.test", address="198.18.0.1")
        assert await world.run(world.one, "show(lookup('allowed.test'))") is None
        assert len(world.seen()) == before
        settings = egress_world.gateway_settings(world.roots_file)
        async with node_world.gateway(world.layout, **settings):
            async with asyncio.timeout(node_world.DEADLINE_S):
                while (await world.fetch(world.one, "allowed.test", address=address)).get("status") != 200:
                    await asyncio.sleep(0.05)
            # the same address still means the same name, and denied stays denied
            assert await world.run(world.one, "show(address_of('allowed.test'))") == address
            assert await world.run(world.one, "show(lookup('evil.test'))") == [5, []]
            await _goes_on(download, 3)
            # nobody here saw this download begin, so a change of the policy ends it, whatever it is
            await world.allow(world.one, {"allow": [{"host": "evil.test"}]})
            await _ends(download)
