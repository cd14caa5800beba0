"""The first words with an agent: whatever answers in its place costs one sandbox, not the worker."""

import asyncio
import contextlib
import json
import multiprocessing
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.guest.agent import AgentError, AgentSilent, initialise, warm
from space.guest.dial import GUEST_ADDRESS
from space.guest.line import Line
from space.host import netns
from space.wire.agent import AgentInit
from space.wire.gateway import AGENT_INTERNAL_PORT

_INIT = AgentInit(sandbox_id="s" * 20, hostname="h", env={}, access_token="t", time_unix_ns=0, entropy="")
_DEADLINE_S = 10


def _repeat(listening: socket.socket, said: bytes) -> None:
    connection, _ = listening.accept()
    while True:
        connection.sendall(said)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n" * 1000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 1_000_000,
    ],
    ids=["interim answers", "body"],
)
async def test_an_answer_without_end_is_given_up(guest: Path, said: bytes) -> None:
    listening = netns.inside(guest, lambda: socket.create_server((GUEST_ADDRESS, AGENT_INTERNAL_PORT)))
    flooding = multiprocessing.get_context("fork").Process(target=_repeat, args=(listening, said), daemon=True)
    with listening:
        flooding.start()
    try:
        async with asyncio.timeout(_DEADLINE_S):
            with pytest.raises(AgentError, match="too long"):
                await initialise(Line(guest), _INIT)
    finally:
        flooding.kill()
        flooding.join()


@contextlib.asynccontextmanager
async def _slow_agent(guest: Path, answer: bytes) -> AsyncIterator[None]:
    """An agent that takes half a second for an answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.5)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
            await writer.drain()
        writer.close()

    listening = netns.inside(guest, lambda: socket.create_server((GUEST_ADDRESS, AGENT_INTERNAL_PORT)))
    async with await asyncio.start_server(serve, sock=listening), asyncio.timeout(_DEADLINE_S):
        yield


async def test_a_slow_agent_is_given_longer_with_each_attempt(guest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than the first attempts last; one that was given up each time after the same time never came."""
    monkeypatch.setattr("space.guest.agent._ATTEMPT_S", 0.05)
    async with _slow_agent(guest, b'{"version": "1", "boot_id": "b", "warnings": [], "init_ms": 1}'):
        assert (await initialise(Line(guest), _INIT)).version == "1"


async def test_what_counts_of_the_time_for_an_answer_is_the_lines_to_say(guest: Path) -> None:
    """The worker's line leaves out what a VM stands in line for a processor."""
    async with _slow_agent(guest, b"{}"):
        with pytest.raises(AgentSilent):
            await warm(Line(guest), 0.1)
        await warm(Line(guest, lambda limit_s: asyncio.timeout(100 * limit_s)), 0.1)


async def test_a_time_that_was_long_on_its_way_is_told_again(guest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen with five restores at once on two busy cores: a guest's clock was over a second behind, and stayed so."""
    monkeypatch.setattr("space.guest.agent._NEAR_S", 0.4)
    times: list[tuple[str, int]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.partition("content-length: ")[2].split()[0])
                if len(times) < 2:  # so slow are the first two
                    await asyncio.sleep(0.5)
                times.append((head.split()[1], json.loads(await reader.readexactly(length))["time_unix_ns"]))
                answer = b'{"version": "1", "boot_id": "b"}'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
        writer.close()

    listening = netns.inside(guest, lambda: socket.create_server((GUEST_ADDRESS, AGENT_INTERNAL_PORT)))
    async with await asyncio.start_server(serve, sock=listening), asyncio.timeout(_DEADLINE_S):
        line = Line(guest)
        await initialise(line, _INIT)
        line.close()
    assert [path for path, _ in times][:3] == ["/init", "/thaw", "/thaw"]
    assert [time_ns for _, time_ns in times] == sorted({time_ns for _, time_ns in times}), "the time is read anew"


@contextlib.asynccontextmanager
async def _agent(guest: Path, *, then: bytes = b"", hang_up: bool = False) -> AsyncIterator[list[int]]:
    """Answer every request with its connection's number; `then` is said unasked after it. Yields how many there were on
    each."""
    counts: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(counts)
        counts.append(0)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                counts[number] += 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % number + then)
                await writer.drain()
                if hang_up:
                    break
        writer.close()

    listening = netns.inside(guest, lambda: socket.create_server((GUEST_ADDRESS, AGENT_INTERNAL_PORT)))
    async with await asyncio.start_server(serve, sock=listening):
        yield counts


async def test_a_connection_is_kept_between_requests(guest: Path) -> None:
    async with _agent(guest) as counts, asyncio.timeout(_DEADLINE_S):
        line = Line(guest)
        assert [await line.request("GET", "/", b"") for _ in range(3)] == [(200, b"0")] * 3
        assert counts == [3]
        assert await line.request("GET", "/", b"", keep=False) == (200, b"0")
        assert await line.request("GET", "/", b"") == (200, b"1")
        line.close()


async def test_requests_at_once_have_a_connection_each_and_one_is_kept(guest: Path) -> None:
    async with _agent(guest) as counts, asyncio.timeout(_DEADLINE_S):
        line = Line(guest)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(line.request("GET", "/", b""))
        await line.request("GET", "/", b"")
        assert sorted(counts) == [1, 1, 2]
        line.close()


async def test_a_connection_that_the_guest_ended_is_not_used_again(guest: Path) -> None:
    async with _agent(guest, hang_up=True) as counts, asyncio.timeout(_DEADLINE_S):
        line = Line(guest)
        for number in range(4):
            assert await line.request("GET", "/", b"") == (200, b"%d" % number)
        assert counts == [1] * 4
        line.close()


async def test_an_answer_before_its_request_is_not_taken_for_it(guest: Path) -> None:
    """Else a guest could have said yes to what it was not yet asked."""
    async with _agent(guest, then=b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n!") as counts:
        line = Line(guest)
        async with asyncio.timeout(_DEADLINE_S):
            assert [(await line.request("GET", "/", b""))[1] for _ in range(3)] == [b"0", b"1", b"2"]
        assert counts == [1] * 3
        line.close()
