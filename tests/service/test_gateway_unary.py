"""The server of decisions, asked by gRPC's own client: answers, failures, callers that leave, and its end."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from space.gateway import unary

Ask = Callable[[bytes], "grpc.aio.UnaryUnaryCall[bytes, bytes]"]

_CALL = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    b"\0\0\0\x04\0\0\0\0\0"
    b"\0\0\1\x01\x04\0\0\0\x01\x83"
    b"\0\0\x09\0\x01\0\0\0\x01\0\0\0\0\x04wait"
)
"""A call as it is on the wire: settings, a header block, one message."""


def _as_it_is(message: bytes) -> bytes:
    return message


@asynccontextmanager
async def asking(path: Path) -> AsyncGenerator[Ask]:
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        yield channel.unary_unary("/any.Service/Method", _as_it_is, _as_it_is)


@asynccontextmanager
async def served(folder: Path, method: Callable[[bytes], Awaitable[bytes]]) -> AsyncGenerator[Ask]:
    path = folder / "socket"
    async with unary.serving(path, method), asking(path) as ask:
        yield ask


async def echo(message: bytes) -> bytes:
    return b"<" + message + b">"


@pytest.mark.parametrize("size", [0, 1, 16_384, 300_000, 1_000_000])
async def test_messages_of_any_size_pass_both_ways(tmp_path: Path, size: int) -> None:
    async with served(tmp_path, echo) as ask:
        for _ in range(3):
            assert await ask(b"x" * size) == b"<" + b"x" * size + b">"


async def test_many_at_once_each_get_their_own(tmp_path: Path) -> None:
    async def slow_first(message: bytes) -> bytes:
        for _ in range(1000 - int(message)):
            await asyncio.sleep(0)
        return message

    async with served(tmp_path, slow_first) as ask:
        calls = [ask(str(number).encode()) for number in range(1000)]
        assert [await call for call in calls] == [str(number).encode() for number in range(1000)]


async def test_a_failure_is_one_call_s(tmp_path: Path) -> None:
    async def picky(message: bytes) -> bytes:
        if message == b"bad":
            raise ValueError("no")
        return message

    async with served(tmp_path, picky) as ask:
        good = ask(b"good")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(b"bad")
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert await good == b"good"
        assert await ask(b"again") == b"again"


async def test_what_a_caller_left_is_cancelled(tmp_path: Path) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def waits(message: bytes) -> bytes:
        if message != b"wait":
            return message
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    async with served(tmp_path, waits) as ask:
        call = ask(b"wait")
        async with asyncio.timeout(10):
            await began.wait()
            call.cancel()
            await cancelled.wait()
        assert await ask(b"on") == b"on"
        began.clear()
        cancelled.clear()
        _, gone = await asyncio.open_unix_connection(tmp_path / "socket")
        gone.write(_CALL)
        async with asyncio.timeout(10):
            await began.wait()
        gone.transport.abort()
        async with asyncio.timeout(10):
            await cancelled.wait()


async def test_its_end_lets_calls_end_and_refuses_those_that_do_not(tmp_path: Path) -> None:
    begun: list[bytes] = []
    ends = asyncio.Event()

    async def waits(message: bytes) -> bytes:
        begun.append(message)
        if message == b"for ever":
            await asyncio.Event().wait()
        await ends.wait()
        return message

    async with asking(tmp_path / "socket") as ask:
        async with unary.serving(tmp_path / "socket", waits):
            soon, never = ask(b"soon"), ask(b"for ever")
            async with asyncio.timeout(10):
                while len(begun) < 2:
                    await asyncio.sleep(0)
            ends.set()
        assert await soon == b"soon"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await never
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_peer_that_speaks_something_else_is_cut_off(tmp_path: Path) -> None:
    async with served(tmp_path, echo) as ask:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(30))
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()
        assert await ask(b"on") == b"<on>"
