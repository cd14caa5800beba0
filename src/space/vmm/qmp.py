"""QMP, QEMU's control protocol: one JSON object a line over a unix socket, commands answered in order.

`Decoder` turns bytes into messages and knows no socket; `Qmp` does the I/O. A client has no task of its own: the event
loop calls it when the socket can be read. QEMU is jailed because a guest may own it, so nothing it sends is
trusted: lines are bounded, answers have deadlines, and anything odd ends the connection.

Protocol: https://www.qemu.org/docs/master/interop/qmp-spec.html
"""

import asyncio
import contextlib
import json
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

from space.vmm.driver import VmmError

Json: TypeAlias = dict[str, object]

_LINE_BYTES = 1024 * 1024
"""The longest line accepted; the largest honest one is a 64 KiB console in base64."""
_READ_BYTES = 64 * 1024
ANSWER_S = 10.0
"""Deadline of one answer. Most take a millisecond; `stop` waits for disk writes in flight."""


class Decoder:
    """Bytes in, messages out. Raises VmmError on what is not QMP."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Json]:
        """Return the messages that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_BYTES:
            raise VmmError(f"QEMU sent a line of more than {_LINE_BYTES} bytes")
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise VmmError("QEMU sent something other than JSON") from error
            if not isinstance(message, dict):
                raise VmmError("QEMU sent JSON that is not an object")
            messages.append(message)
        return messages


def encode(command: str, arguments: Json) -> bytes:
    """Return the line that asks for a command."""
    body: Json = {"execute": command}
    if arguments:
        body["arguments"] = arguments
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def child(message: object, key: str) -> Json:
    """Return the object under `key`, or an empty one where there is none: what QEMU sends may lack anything."""
    value = message.get(key) if isinstance(message, dict) else None
    return value if isinstance(value, dict) else {}


def _error(command: str, message: Json) -> VmmError | None:
    if "error" in message:
        return VmmError(f"QEMU refused {command}: {child(message, 'error').get('desc')}")
    if "return" not in message:
        return VmmError(f"QEMU's answer to {command} is neither a result nor an error")
    return None


class Qmp:
    """A connection. `on_event(name, data)` is called for each event, `on_lost()` once, when the connection is over.

    `limit(seconds)` raises TimeoutError where an answer takes too long.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_event: Callable[[str, Json], None],
        on_lost: Callable[[], None],
        limit: Callable[[float], AbstractAsyncContextManager[object]] = asyncio.timeout,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._on_event, self._on_lost, self._limit = on_event, on_lost, limit
        self._decoder = Decoder()
        self._greeting: asyncio.Future[object] = self._loop.create_future()
        self._waiting: deque[tuple[str, asyncio.Future[object]]] = deque()
        self._unsent: deque[tuple[bytes, Sequence[int]]] = deque()
        self._open = True
        self._loop.add_reader(sock, self._readable)

    @property
    def open(self) -> bool:
        """Whether the connection still stands."""
        return self._open

    async def negotiate(self) -> None:
        """Wait for the greeting and leave the negotiation mode; once, before anything else."""
        async with self._deadline("its greeting"):
            await self._greeting
        await self.execute("qmp_capabilities")

    def send(self, command: str, arguments: Json | None = None, *, fds: Sequence[int] = ()) -> asyncio.Future[object]:
        """Send a command and return the future of its result. `fds` travel with it; ours to close when it is done."""
        answer: asyncio.Future[object] = self._loop.create_future()
        if not self._open:
            answer.set_exception(VmmError(f"no connection to QEMU for {command}"))
            return answer
        self._waiting.append((command, answer))
        self._unsent.append((encode(command, arguments or {}), tuple(fds)))
        self._flush()
        return answer

    async def execute(
        self, command: str, arguments: Json | None = None, *, fds: Sequence[int] = (), timeout_s: float = ANSWER_S
    ) -> object:
        """Send a command and return its result. Raises VmmError: refused, no answer in time, connection lost."""
        async with self._deadline(command, timeout_s):
            return await self.send(command, arguments, fds=fds)

    @contextlib.asynccontextmanager
    async def _deadline(self, what: str, timeout_s: float = ANSWER_S) -> AsyncIterator[None]:
        try:
            async with self._limit(timeout_s):
                yield
        except TimeoutError:
            raise VmmError(f"QEMU gave no answer to {what} within {timeout_s:g} s") from None

    def close(self) -> None:
        """End the connection; QEMU goes back to listening for another."""
        self._end(None)

    def _flush(self) -> None:
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                sent = socket.send_fds(self._sock, [data], list(fds)) if fds else self._sock.send(data)
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._flush)
                return
            except OSError as error:
                self._end(VmmError(f"QEMU's control socket broke: {error}"))
                return
            self._unsent.popleft()
            if sent < len(data):
                self._unsent.appendleft((data[sent:], ()))
        self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
            if not data:
                self._end(VmmError("QEMU closed its control socket"))
                return
            for message in self._decoder.feed(data):
                self._take(message)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(VmmError(f"QEMU's control socket broke: {error}"))
        except VmmError as error:
            self._end(error)

    def _take(self, message: Json) -> None:
        if "event" in message:
            self._on_event(str(message["event"]), child(message, "data"))
        elif "QMP" in message and not self._greeting.done():
            self._greeting.set_result(message)
        elif self._waiting:
            command, answer = self._waiting.popleft()
            if answer.done():  # its caller is gone
                return
            error = _error(command, message)
            if error:
                answer.set_exception(error)
            else:
                answer.set_result(message["return"])
        else:
            raise VmmError("QEMU answered what nobody asked")

    def _end(self, error: VmmError | None) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for answer in (self._greeting, *(answer for _, answer in self._waiting)):
            if not answer.done():
                answer.set_exception(error or VmmError("the connection to QEMU was closed"))
                answer.exception()  # seen: a caller that still waits gets it all the same
        self._waiting.clear()
        self._on_lost()


def _by_folder(path: Path) -> tuple[int, str]:
    """Return a descriptor of the socket's folder and an address through it, short enough for any path (108 bytes)."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return folder, f"/proc/self/fd/{folder}/{path.name}"


def listen(path: Path) -> socket.socket:
    """Bind a control socket that only root may connect to; QEMU inherits it, so that it needs no path of ours."""
    folder, address = _by_folder(path)
    try:
        path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            os.fchmod(sock.fileno(), 0o600)  # before bind: the file is never more open than this
            sock.bind(address)
            sock.listen(1)
        except BaseException:
            sock.close()
            raise
        return sock
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket:
    """Connect to a control socket; it answers at once, QEMU or not, as long as somebody holds the listening end."""
    folder, address = _by_folder(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(folder)
    return sock
