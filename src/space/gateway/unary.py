"""A gRPC server of one method with one message each way, on a unix socket: how a proxy asks for decisions.

Answers of one turn of the event loop leave in one write. A call whose caller has left is cancelled.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from space.gateway.http2 import Called, Connection, ProtocolError
from space.telemetry import logger
from space.wire.serving import bind_unix

Method = Callable[[bytes], Awaitable[bytes]]
"""Serialized question to serialized answer. An exception is logged, and the caller gets an error of gRPC's."""

_INTERNAL, _UNAVAILABLE = 13, 14
_GRACE_S = 1.0
"""Decisions take well under a millisecond; one that waits longer than this waits for something outside."""
_MODE = 0o660

log = logger()


class _Peer(asyncio.Protocol):
    """One connection of a proxy's."""

    def __init__(self, method: Method, calls: asyncio.TaskGroup, peers: "set[_Peer]") -> None:
        self._method, self._calls, self._peers = method, calls, peers
        self._connection = Connection()
        self._open: dict[int, asyncio.Task[None]] = {}
        self._transport: asyncio.Transport | None = None
        self._flushing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._peers.add(self)
        self._flush()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._peers.discard(self)
        self.cancel()

    def under_way(self) -> list[asyncio.Task[None]]:
        """Return the calls that are not answered yet."""
        return list(self._open.values())

    def cancel(self) -> None:
        """End all calls."""
        for task in self._open.values():
            task.cancel()
        self._open.clear()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._connection.receive(data):
                if isinstance(event, Called):
                    task = self._calls.create_task(self._call(event.stream, event.message))
                    self._open[event.stream] = task
                elif (left := self._open.pop(event.stream, None)) is not None:
                    left.cancel()
        except ProtocolError as error:
            log.warning("proxy_misbehaved", detail=str(error))
            self.close()
        else:
            self._soon()

    def pause_writing(self) -> None:
        """Take no more questions from a proxy that takes no answers."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what is answered, and end the connection."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    async def _call(self, stream: int, message: bytes) -> None:
        try:
            self._connection.answer(stream, await self._method(message))
        except asyncio.CancelledError:
            self._connection.refuse(stream, _UNAVAILABLE)
            raise
        except Exception as error:
            log.exception("call_crashed", error=type(error).__name__)
            self._connection.refuse(stream, _INTERNAL)
        finally:
            self._open.pop(stream, None)
            self._soon()

    def _soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        out = self._connection.outgoing()
        if out and self._transport is not None:
            self._transport.write(out)


@contextlib.asynccontextmanager
async def serving(path: Path, method: Method) -> AsyncGenerator[None]:
    """Serve `method` on a unix socket (0660) while the context lasts; calls under way at its end get a second."""
    peers: set[_Peer] = set()
    with bind_unix(path, mode=_MODE) as listener:
        async with asyncio.TaskGroup() as calls:
            server = await asyncio.get_running_loop().create_unix_server(
                lambda: _Peer(method, calls, peers), sock=listener
            )
            try:
                yield
            finally:
                server.close()
                under_way = [call for peer in peers for call in peer.under_way()]
                if under_way:
                    await asyncio.wait(under_way, timeout=_GRACE_S)
                for peer in list(peers):
                    peer.cancel()
                await asyncio.sleep(0)  # they refuse now, which is still sent
                for peer in list(peers):
                    peer.close()
