"""Orders to an agent: whatever answers in its place costs one sandbox, not the worker."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import pytest

from space.guest.agent import AgentError, AgentSilent, freeze, thaw
from space.guest.dial import GUEST_ADDRESS, is_quiet
from space.guest.line import Line
from space.host import netns
from space.wire.agent import FreezeWish, Frozen, HookReport, ThawWish
from space.wire.gateway import AGENT_INTERNAL_PORT, AGENT_ORDERS_PORT

_DEADLINE_S = 30
_PAUSE = FreezeWish(reason="pause", hook_timeout_s=0)
_THAW = ThawWish(reason="pause")
_FROZEN = b"done frozen=1 took_us=1500\n"


@pytest.fixture
async def line(guest: Path) -> AsyncGenerator[Line]:
    """A line to the guest, closed in the end."""
    made = Line(guest)
    async with asyncio.timeout(_DEADLINE_S):
        yield made
    made.close()


@contextlib.asynccontextmanager
async def _agent(
    guest: Path,
    answer: Callable[[str], bytes],
    *,
    hang_up: bool = False,
    port: int = AGENT_ORDERS_PORT,
    end: bytes = b"\n",
) -> AsyncIterator[list[list[str]]]:
    """Answer what comes; yields what came on each connection."""
    heard: list[list[str]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: list[str] = []
        heard.append(mine)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                order = (await reader.readuntil(end)).decode()
                mine.append(order)
                if said := answer(order):
                    writer.write(said)
                    await writer.drain()
                if hang_up:
                    break
        writer.close()

    listening = netns.inside(guest, lambda: socket.create_server((GUEST_ADDRESS, port)))
    async with await asyncio.start_server(serve, sock=listening):
        yield heard


def _works(order: str) -> bytes:
    return _FROZEN if order.startswith("freeze") else b"done frozen=0\n"


async def test_a_connection_is_kept_between_orders(guest: Path, line: Line) -> None:
    async with _agent(guest, _works) as heard:
        for _ in range(2):
            assert await freeze(line, _PAUSE, 5) == Frozen(frozen=True, freeze_ms=1.5)
            await thaw(line, _THAW, 5)
        await thaw(line, ThawWish(reason="fork", entropy="QUJD" * 20), 5)
    order = "freeze reason=pause hook_timeout_ms=0 sync=0 fsfreeze=0 limit_ms=30000\n"
    assert heard == [[order, "thaw reason=pause\n"] * 2 + [f"thaw reason=fork entropy={'QUJD' * 20}\n"]]


async def test_no_connection_is_left_where_memory_is_saved(guest: Path, line: Line) -> None:
    wish = FreezeWish(reason="suspend", hook_timeout_s=0.25, sync=True, fsfreeze=True, limit_s=7)

    def answer(_: str) -> bytes:
        return b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"

    async with (
        _agent(guest, _works) as heard,
        _agent(guest, answer, port=AGENT_INTERNAL_PORT, end=b"\r\n\r\n") as asked,
    ):
        await line.request("GET", "/health", b"")
        await freeze(line, _PAUSE, 5)
        await freeze(line, wish, 5)
        assert line.orders._kept is None
        assert line._kept is None
        await freeze(line, _PAUSE, 5)
        await line.request("GET", "/health", b"")
    assert [len(orders) for orders in heard] == [2, 1]
    assert len(asked) == 2
    assert heard[0][1] == "freeze reason=suspend hook_timeout_ms=250 sync=1 fsfreeze=1 limit_ms=7000\n"


@pytest.mark.parametrize(
    ("said", "hook"),
    [
        (b"status=3 timed_out=0 output=a%20b%0A%25%FF", HookReport(ran=True, status=3, output_tail="a b\n%\ufffd")),
        (b"status=- timed_out=1 output=", HookReport(ran=True, timed_out=True)),
        (b"status=0 timed_out=0 output=" + b"%25" * 2048, HookReport(ran=True, status=0, output_tail="%" * 2048)),
    ],
    ids=["failed", "hung", "long"],
)
async def test_how_the_hook_went_is_told(guest: Path, line: Line, said: bytes, hook: HookReport) -> None:
    async with _agent(guest, lambda _: _FROZEN.replace(b"\n", b" hook=1 " + said + b"\n")):
        assert (await freeze(line, _PAUSE, 5)).hook == hook


async def test_a_refusal_says_why(guest: Path, line: Line) -> None:
    async with _agent(guest, lambda _: b"refused 409 cannot_freeze they%20go%0Aon\n") as heard:
        for _ in range(2):
            with pytest.raises(AgentError, match="409 cannot_freeze: they go\non"):
                await freeze(line, _PAUSE, 5)
    assert len(heard) == 1


@pytest.mark.parametrize(
    "said",
    [
        b"x" * 9000 + b"\n", b"\n", b"done\n", b"done frozen=2 took_us=1\n", b"done frozen=1\n",
        b"done frozen=1 took_us=-1\n",
        b"done frozen=1 took_us=1 hook=1\n", b"done frozen=1 took_us=1 x=1\n", b"done frozen=1 took_us=1 \n",
        b"done frozen=1 took_us=1\r\n", b"done frozen=1 took_us=" + b"9" * 5000 + b"\n",
        b"refused\n", b"refused 1 a b\n", b"refused 409 a b c\n", b"\0" * 20 + b"\n",
        b"done frozen=1 took_us=1 hook=1 status=0 timed_out=0 output=\xff\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=lambda said: str(said[:40]),
)  # fmt: skip
async def test_what_is_no_answer_is_none(guest: Path, line: Line, said: bytes) -> None:
    async with _agent(guest, lambda _: said):
        with pytest.raises(AgentError, match="makes no sense"):
            await freeze(line, _PAUSE, 20)


async def test_an_answer_without_end_is_given_up(guest: Path, line: Line) -> None:
    async with _agent(guest, lambda _: b"done " * 1_000_000):
        with pytest.raises(AgentError, match="too long"):
            await thaw(line, _THAW, 20)


async def test_silence_is_told_from_an_answer(guest: Path, line: Line) -> None:
    async with _agent(guest, lambda _: b""):
        with pytest.raises(AgentSilent):
            await thaw(line, _THAW, 0.2)
    async with _agent(guest, lambda _: b"done frozen=0", hang_up=True):
        with pytest.raises(AgentSilent):
            await thaw(line, _THAW, 5)


async def test_an_answer_before_its_order_is_not_taken_for_it(guest: Path, line: Line) -> None:
    """Else a guest could have said that it stands still before it was told to."""
    async with _agent(guest, lambda _: _FROZEN * 2) as heard:
        for _ in range(3):
            await freeze(line, _PAUSE, 5)
    assert [len(orders) for orders in heard] == [1] * 3


async def test_words_that_came_after_an_answer_end_its_connection(guest: Path, line: Line) -> None:
    heard: list[str] = []
    answered = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while order := (await reader.readline()).decode():
            heard.append(order)
            writer.write(_works(order))
            await answered.wait()
            writer.write(_FROZEN)
        writer.close()

    listening = netns.inside(guest, lambda: socket.create_server((GUEST_ADDRESS, AGENT_ORDERS_PORT)))
    async with await asyncio.start_server(serve, sock=listening):
        await thaw(line, _THAW, 5)
        kept = line.orders._kept
        assert kept is not None
        answered.set()
        while is_quiet(kept):
            await asyncio.sleep(0.001)
        await freeze(line, _PAUSE, 5)
        assert line.orders._kept is not kept
        assert len(heard) == 2


async def test_a_connection_that_the_guest_ended_is_not_used_again(guest: Path, line: Line) -> None:
    async with _agent(guest, _works, hang_up=True) as heard:
        for _ in range(3):
            await thaw(line, _THAW, 5)
    assert [len(orders) for orders in heard] == [1] * 3


async def test_an_order_is_given_again_where_a_kept_connection_breaks_under_it(guest: Path, line: Line) -> None:
    heard: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):  # the second of a connection is not answered
            heard.append((await reader.readline()).decode())
            if len(heard) % 2:
                writer.write(b"done frozen=0\n")
                await writer.drain()
        writer.close()

    listening = netns.inside(guest, lambda: socket.create_server((GUEST_ADDRESS, AGENT_ORDERS_PORT)))
    async with await asyncio.start_server(serve, sock=listening):
        await thaw(line, _THAW, 5)
        await thaw(line, _THAW, 5)
    assert heard == ["thaw reason=pause\n"] * 3


async def test_an_agent_of_before_there_were_orders_is_asked(guest: Path, line: Line) -> None:
    """It is in the memory of what was suspended, or runs, when its host's SPACE is upgraded."""
    asked: list[str] = []

    def answer(head: str) -> bytes:
        asked.append(head.split()[1])
        said = b'{"frozen": true, "freeze_ms": 2, "hook": {"ran": false}}'
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(said) + said

    async with _agent(guest, answer, port=AGENT_INTERNAL_PORT, end=b"\r\n\r\n"):
        assert (await freeze(line, FreezeWish(reason="snapshot"), 5)).freeze_ms == 2
        await thaw(line, _THAW, 5)
    assert asked == ["/freeze", "/thaw"]
