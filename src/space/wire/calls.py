"""Calls of a process of ours over its unix socket: a request goes out in one write, and connections are kept.

For whole answers of moderate size; streams go through httpx2, for which each call would take ten times as much of both
processes' time (docs/decisions/0032-calls-without-httpx2.md).
"""

import asyncio
import dataclasses
from pathlib import Path

import httptools

_KEPT = 16
"""Idle connections that are kept, for as many calls at once without a new one."""

_TARGET_CHARS = frozenset(map(chr, range(0x21, 0x7F)))


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    content: bytes


class _Connection(asyncio.Protocol):
    """One call after the other; httptools calls the methods that begin with `on_`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._content: list[bytes] = []

    @property
    def usable(self) -> bool:
        """Whether it is open, and nothing is under way on it."""
        return self._transport is not None and not self._transport.is_closing() and self._answer is None

    async def call(self, request: bytes) -> Answer:
        """Send a request and return the answer; raises ConnectionError."""
        assert self.usable
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._content = {}, []
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            return await self._answer
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._answer = None

    def close(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # nobody has asked for anything
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"What came is no HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError(str(exc or "It was closed before the answer.")))
        self._transport = None

    def _fail(self, error: ConnectionError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._content.append(body)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(self._parser.get_status_code(), self._headers, b"".join(self._content)))
        if not self._parser.should_keep_alive():
            self.close()


class Calls:
    """A client of the server behind one socket. Calls at once have a connection each."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._idle: list[_Connection] = []

    async def call(self, method: str, target: str, body: bytes, timeout_s: float) -> Answer:
        """Make a call with a JSON body (empty for none) and return the answer, whatever its status.

        Raises OSError, of which ConnectionError and TimeoutError are kinds. It is not known then whether it was done.
        """
        if not _TARGET_CHARS.issuperset(target):
            raise ValueError(f"{target!r} does not fit into the line of a request")
        head = (
            f"{method} {target} HTTP/1.1\r\nhost: space\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        async with asyncio.timeout(timeout_s):
            connection = self._kept() or await self._connect()
            answer = await connection.call(head.encode() + body)
        if connection.usable and len(self._idle) < _KEPT:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """End the idle connections; calls under way end theirs."""
        while self._idle:
            self._idle.pop().close()

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_unix_connection(_Connection, str(self._socket))
        return connection
