"""Two TCP connections as one: bytes of each go to the other, and so does the end of each on its own.

Sockets are read and written by the event loop without buffers of their own. TLS is done here over a socket, since
asyncio's cannot end one direction alone (RFC 8446 §6.1), which clients of raw TCP do.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

IDLE_S = 3600.0
"""Without a byte in a direction for so long, both connections end."""

_CHUNK = 64 * 1024

Seen = Callable[[bool, int], None]
"""Told of bytes before they are passed on (True: what the client sends); may raise SpaceError to end both."""


class Stream(Protocol):
    """One end."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Read some bytes; 0 at the end."""

    async def send(self, data: memoryview) -> None:
        """Write all of it."""

    async def end(self) -> None:
        """Say that nothing more is sent; what comes is still read."""


class Plain:
    """A connected, non-blocking socket. Whoever made it closes it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._loop = connection, asyncio.get_running_loop()

    async def receive_into(self, buffer: memoryview) -> int:
        """Read some bytes; 0 at the end."""
        return await self._loop.sock_recv_into(self._socket, buffer)

    async def send(self, data: memoryview) -> None:
        """Write all of it."""
        await self._loop.sock_sendall(self._socket, data)

    async def end(self) -> None:
        """Say that nothing more is sent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


class Tls:
    """TLS as its client, over a connected socket; one task reads, and one writes. `handshake` comes first."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, server_name: str) -> None:
        self._below = Plain(connection)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=server_name)
        self._sending = asyncio.Lock()  # records leave in the order in which they were made

    async def handshake(self) -> None:
        """Shake hands, and verify the certificate; raises ssl.SSLError, OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            else:
                break
        await self._flush()

    async def receive_into(self, buffer: memoryview) -> int:
        """Read some bytes; 0 at the end. Raises ssl.SSLError for an end that was not announced."""
        while True:
            try:
                return self._tls.read(len(buffer), buffer)  # type: ignore[return-value] # with a buffer a count
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLZeroReturnError:
                return 0

    async def send(self, data: memoryview) -> None:
        """Write all of it."""
        while data:
            data = data[self._tls.write(data) :]
            await self._flush()

    async def end(self) -> None:
        """Say that nothing more is sent."""
        # `unwrap` writes the alert, and then looks for the other's; unread data, which it would trip over, is kept away
        unread = self._in.read()
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._in.write(unread)
        with contextlib.suppress(OSError):
            await self._flush()

    async def _fill(self) -> None:
        data = memoryview(bytearray(_CHUNK))
        count = await self._below.receive_into(data)
        if count:
            self._in.write(data[:count])
        else:
            self._in.write_eof()

    async def _flush(self) -> None:
        async with self._sending:
            if data := self._out.read():
                await self._below.send(memoryview(data))


async def carry(client: Stream, server: Stream, seen: Seen) -> None:
    """Copy until both directions have ended; raises what `seen` raises, OSError, TimeoutError, in a group."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_copy(client, server, seen, sends=True))
        group.create_task(_copy(server, client, seen, sends=False))


async def _copy(source: Stream, target: Stream, seen: Seen, *, sends: bool) -> None:
    buffer = memoryview(bytearray(_CHUNK))
    while True:
        async with asyncio.timeout(IDLE_S):
            count = await source.receive_into(buffer)
        if not count:
            break
        seen(sends, count)
        await target.send(buffer[:count])
    await target.end()
