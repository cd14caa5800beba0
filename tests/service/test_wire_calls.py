"""Calls over a unix socket, against servers that do everything a server can do to a connection."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.deployment import eventually

from space.wire.calls import Calls

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Of: test\r\n\r\n{}"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request_of(reader: asyncio.StreamReader) -> bytes:
    """Return the next request; raises IncompleteReadError at the end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


@contextlib.asynccontextmanager
async def served(path: Path, serve: Serve) -> AsyncGenerator[tuple[Calls, list[asyncio.StreamWriter]]]:
    """Serve at `path`; gives a client, and the server's ends of its connections."""
    ends: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)

    calls = Calls(path)
    async with await asyncio.start_unix_server(accept, path):
        try:
            yield calls, ends
        finally:
            calls.close()
            for end in ends:
                end.close()


async def always_ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await request_of(reader)
        writer.write(OK)


async def test_a_connection_is_used_again_and_calls_at_once_have_their_own(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await request_of(reader)
            seen.append(request)
            if request.startswith(b"GET /slow"):
                await eventually(lambda: len(seen) > 3, within_s=30, what="the other call is there")
            writer.write(OK)

    async with served(tmp_path / "s", serve) as (calls, ends):
        for _ in range(2):
            answer = await calls.call("POST", "/v1/x?y=1", b'{"a":1}', 30)
        assert (answer.status, answer.headers["x-of"], answer.content) == (200, "test", b"{}")
        assert seen[0].startswith(b"POST /v1/x?y=1 HTTP/1.1\r\n")
        assert seen[0].endswith(b'\r\n\r\n{"a":1}')
        assert len(ends) == 1
        async with asyncio.TaskGroup() as group:
            group.create_task(calls.call("GET", "/slow", b"", 60))
            group.create_task(calls.call("GET", "/quick", b"", 60))
        assert len(ends) == 2


@pytest.mark.parametrize(
    ("answer", "status", "content"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 503 X\r\nconnection: close\r\ncontent-length: 3\r\n\r\nabc", 503, b"abc"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 200, b"{}"),
    ],
)
async def test_answers_in_pieces_of_every_kind(tmp_path: Path, answer: bytes, status: int, content: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            for byte in answer:
                writer.write(bytes([byte]))
                await writer.drain()

    async with served(tmp_path / "s", serve) as (calls, ends):
        for _ in range(3):
            found = await calls.call("GET", "/", b"", 30)
            assert (found.status, found.content) == (status, content)
        assert len(ends) == (3 if b"close" in answer else 1)


async def test_a_connection_that_its_server_has_closed_is_not_used_again(tmp_path: Path) -> None:
    async with served(tmp_path / "s", always_ok) as (calls, ends):
        await calls.call("GET", "/", b"", 30)
        ends[0].close()
        await ends[0].wait_closed()
        await eventually(lambda: not any(kept.usable for kept in calls._idle), within_s=30, what="the end is seen")
        assert (await calls.call("GET", "/", b"", 30)).status == 200
        assert len(ends) == 2


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", b"no HTTP at all\r\n\r\n"])
async def test_an_answer_that_is_none_is_an_error_of_the_connection(tmp_path: Path, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(answer)

    async with served(tmp_path / "s", serve) as (calls, _):
        with pytest.raises(ConnectionError):
            await calls.call("GET", "/", b"", 30)


async def test_what_is_given_up_leaves_no_answer_to_the_next(tmp_path: Path) -> None:
    """The late answer of a call that was given up must not be taken for that of the next one."""
    late = asyncio.Event()
    readers: list[asyncio.StreamReader] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        readers.append(reader)
        while True:
            if (await request_of(reader)).startswith(b"GET /late"):
                await late.wait()
                writer.write(OK.replace(b"200", b"500"))
            writer.write(OK)

    async with served(tmp_path / "s", serve) as (calls, _):
        with pytest.raises(TimeoutError):
            await calls.call("GET", "/late", b"", 0.1)
        await eventually(readers[0].at_eof, within_s=30, what="its connection has ended")
        late.set()
        assert (await calls.call("GET", "/", b"", 30)).status == 200


async def test_no_server_and_no_target(tmp_path: Path) -> None:
    calls = Calls(tmp_path / "nobody")
    with pytest.raises(OSError, match="No such file"):
        await calls.call("GET", "/", b"", 30)
    for target in ("/a b", "/a\r\nx: y", "/ü"):
        with pytest.raises(ValueError, match="does not fit"):
            await calls.call("GET", target, b"", 30)
