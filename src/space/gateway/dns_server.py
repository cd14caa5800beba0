"""The sockets of the guests' name server, UDP and TCP, in the gateway namespace.

Who asks is the source address, which packet rules tie to a slot. They also bound how many questions a guest may send
in a second; what is bounded here is what one guest can keep open.
"""

import asyncio
import collections
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable

from space.telemetry import logger
from space.wire.gateway import EGRESS_DNS_PORT

MAX_TCP = 16
"""Open TCP connections of one guest."""
_MAX_UNDER_WAY = 64
"""Questions of one guest that wait for their answer; more are dropped, as by a lossy network."""
_TCP_IDLE_S = 5.0
_ANY = "0.0.0.0"  # noqa: S104 - packet rules decide who reaches it

Answer = Callable[[bytes, str], Awaitable[bytes | None]]
"""Answers a question from an address."""

log = logger()


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, answer: Answer, group: asyncio.TaskGroup) -> None:
        self._answer, self._group = answer, group
        self._under_way: collections.Counter[str] = collections.Counter()
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override] # of this kind
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self._under_way[addr[0]] < _MAX_UNDER_WAY:
            self._group.create_task(self._reply(data, addr))

    async def _reply(self, question: bytes, peer: tuple[str, int]) -> None:
        self._under_way[peer[0]] += 1
        try:
            reply = await self._answer(question, peer[0])
        except Exception:
            log.exception("dns_answer_failed")
            return
        finally:
            self._under_way[peer[0]] -= 1
            if not self._under_way[peer[0]]:
                del self._under_way[peer[0]]
        if reply is not None and self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(reply, peer)


class _Tcp:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._open: collections.Counter[str] = collections.Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: questions one after the other, each within 5 s."""
        peer = writer.get_extra_info("peername")[0]
        self._open[peer] += 1
        try:
            if self._open[peer] <= MAX_TCP:
                with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                    await self._converse(reader, writer, peer)
        except Exception:
            log.exception("dns_answer_failed")
        finally:
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        while True:
            async with asyncio.timeout(_TCP_IDLE_S):
                length = int.from_bytes(await reader.readexactly(2))
                question = await reader.readexactly(length)
                reply = await self._answer(question, peer)
                if reply is None:
                    return
                writer.write(len(reply).to_bytes(2) + reply)
                await writer.drain()


@contextlib.asynccontextmanager
async def serving(answer: Answer, port: int = EGRESS_DNS_PORT) -> AsyncGenerator[None]:
    """Answer questions while the context lasts."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Udp(answer, group), local_addr=(_ANY, port), family=socket.AF_INET
        )
        stack.callback(transport.close)
        server = await asyncio.start_server(_Tcp(answer).serve, _ANY, port, family=socket.AF_INET, limit=65537)
        stack.callback(server.close)
        yield
