"""HTTP to one guest's agent, over a connection that starts inside the slot's namespace and is kept between requests.

An exchange over a new connection costs an emulated guest as much again as what it asks for. Every byte that comes back
is the guest's: answers are bounded and parsed by h11, and one that was not asked for ends the connection.
"""

import asyncio
import contextlib
import dataclasses
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

import h11

from space.guest.dial import GUEST_ADDRESS, Dial, is_quiet
from space.guest.orders import Orders
from space.host.netns import tcp_socket
from space.wire.gateway import AGENT_INTERNAL_PORT

MAX_ANSWER_BYTES = 64 * 1024
_MAX_RECEIVED_BYTES = 4 * MAX_ANSWER_BYTES
"""For one answer: headers, interim answers and the body's framing included."""
_MAX_HEAD_BYTES = 4096


class TooLong(Exception):
    """The answer is longer than any of the agent's."""


class AgentRefused(Exception):
    """The agent answered that it will not; the text is its problem document."""


Limit: TypeAlias = Callable[[float], AbstractAsyncContextManager[object]]
"""`limit(seconds)` raises TimeoutError out of a block that takes too long."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Connection:
    raw: socket.socket
    http: h11.Connection

    @property
    def idle(self) -> bool:
        """Whether it is still open, and the guest has said nothing since its last answer."""
        return not self.http.trailing_data[0] and is_quiet(self.raw)


async def takes_connections(netns: Path, limit: AbstractAsyncContextManager[object]) -> bool:
    """Tell whether the guest's kernel takes a connection for its agent; nothing is said over it.

    `limit` raises TimeoutError where that takes too long.
    """
    try:
        raw = tcp_socket(netns)
    except OSError:
        return False
    try:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        async with limit:
            await asyncio.get_running_loop().sock_connect(raw, (GUEST_ADDRESS, AGENT_INTERNAL_PORT))
    except (OSError, TimeoutError):
        return False
    else:
        return True
    finally:
        raw.close()


class Line:
    """A way to the agent from inside `netns`. Requests at once have a connection each; one is kept.

    Whoever asks puts `limit` around a request, or an order.
    """

    def __init__(self, netns: Path, limit: Limit = asyncio.timeout) -> None:
        self._netns, self.limit = netns, limit
        self.orders = Orders(netns)
        self._dial = Dial(netns, AGENT_INTERNAL_PORT)
        self._kept: _Connection | None = None

    async def take_over(self, path: str, body: bytes) -> socket.socket:
        """Return a connection of its own that the agent has taken over; see `taken_over`."""
        return await taken_over(self._netns, path, body)

    def close(self) -> None:
        """End the kept connections; the line can be used again."""
        self.orders.close()
        self.hang_up()

    def hang_up(self) -> None:
        """End the connection that is kept for requests."""
        if self._kept is not None:
            self._kept.raw.close()
            self._kept = None

    async def request(self, method: str, path: str, body: bytes, *, keep: bool = True) -> tuple[int, bytes]:
        """Return (status, body) of the agent's answer; `keep` False has the agent end the connection after it.

        A request may arrive twice, where a kept connection broke under it. Raises NotConnected, OSError,
        h11.RemoteProtocolError, TooLong; put a deadline around it.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            if kept.idle:
                with contextlib.suppress(OSError, h11.RemoteProtocolError):
                    return await self._exchange(kept, method, path, body, keep=keep)
            kept.raw.close()
        return await self._exchange(await self._connect(), method, path, body, keep=keep)

    async def _connect(self) -> _Connection:
        raw = await self._dial.connect()
        return _Connection(raw, h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ANSWER_BYTES))

    async def _exchange(
        self, connection: _Connection, method: str, path: str, body: bytes, *, keep: bool
    ) -> tuple[int, bytes]:
        raw, http = connection.raw, connection.http
        loop = asyncio.get_running_loop()
        done = False
        try:
            headers = [("host", "agent"), ("content-length", str(len(body)))]
            headers += [] if keep else [("connection", "close")]
            request = http.send(h11.Request(method=method, target=path, headers=headers)) or b""
            request += http.send(h11.Data(data=body)) or b""
            await loop.sock_sendall(raw, request + (http.send(h11.EndOfMessage()) or b""))
            status, answer, received = 0, bytearray(), 0
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    data = await loop.sock_recv(raw, 65536)
                    received += len(data)
                    if received > _MAX_RECEIVED_BYTES:  # interim answers without end would hold up the event loop
                        raise TooLong
                    http.receive_data(data)
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    answer += event.data
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise TooLong
                elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    done = True
                    return status, bytes(answer)
        finally:
            if done and self._kept is None and http.our_state is h11.DONE and http.their_state is h11.DONE:
                http.start_next_cycle()
                self._kept = connection
            else:
                raw.close()


async def taken_over(netns: Path, path: str, body: bytes) -> socket.socket:
    """Ask the agent to take a connection over for another protocol, and return our end of it once it has.

    The agent speaks first then, so nothing behind its answer's head is read. Raises OSError, AgentRefused; put a
    deadline around it.
    """
    loop = asyncio.get_running_loop()
    raw = tcp_socket(netns)
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(raw, (GUEST_ADDRESS, AGENT_INTERNAL_PORT))
        head = f"POST {path} HTTP/1.1\r\nHost: agent\r\nConnection: Upgrade\r\nContent-Length: {len(body)}\r\n\r\n"
        await loop.sock_sendall(raw, head.encode() + body)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            byte = await loop.sock_recv(raw, 1)
            if not byte or len(answer) > _MAX_HEAD_BYTES:
                break
            answer += byte
        if not answer.startswith(b"HTTP/1.1 101 "):
            raise _refused(answer, await loop.sock_recv(raw, _MAX_HEAD_BYTES))  # noqa: TRY301 - closes raw, as all do
    except BaseException:
        raw.close()
        raise
    return raw


def _refused(head: bytes, body: bytes) -> Exception:
    """Return the error for an answer that is none, or no."""
    if head.startswith(b"HTTP/1.1 "):
        return AgentRefused(body.decode(errors="replace"))
    return ConnectionResetError("the agent ended the connection")
