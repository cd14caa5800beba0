"""The server's half of HTTP/2 (RFC 9113), as far as gRPC's calls of one message each way need it. Bytes in, calls out.

For sockets on which one of our proxies asks one method. Nothing is decided by a request's headers, so they are not
read, and no table is kept for them (RFC 7541); what we send refers to none either. A message that arrives is bounded,
and so is how many calls are open. Whatever a peer does wrong ends its connection.

Why not a library: at some thousands of decisions a second a general implementation of the protocol costs several times
what the decision does (docs/decisions/0020-decisions-without-a-grpc-library.md has the figures).
"""

import dataclasses
import struct
from collections.abc import Iterator

MAX_MESSAGE = 1024 * 1024
"""Bytes of one message. A proxy lets 60 KiB of headers in."""
MAX_OPEN = 65_536
"""Calls of one connection that are not answered: as many as the proxy's own limit for the socket's cluster."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = struct.Struct("!HBBBI")
"""A frame's: length (upper 16 bits, lower 8), type, flags, stream."""
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 1, 1, 4, 8
_S_MAX_STREAMS, _S_WINDOW, _S_FRAME = 3, 4, 5
_FRAME = 16_384
"""The least that both sides must take in one frame, and the most that either sends here."""
_WINDOW_DEFAULT, _WINDOW_MAX = 65_535, 2**31 - 1
_WINDOW_IN = 64 * MAX_MESSAGE
"""What a connection may send before we say more; half of it is given back at a time."""
_PREFIX = struct.Struct("!BI")
"""gRPC's, before a message: whether it is compressed, its length."""


class ProtocolError(Exception):
    """The peer broke the protocol; the connection is of no more use."""


@dataclasses.dataclass(frozen=True, slots=True)
class Called:
    """A call has arrived whole, to be answered by `answer` or `refuse`."""

    stream: int
    message: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Left:
    """The peer does not wait for this call's answer any more."""

    stream: int


@dataclasses.dataclass(slots=True)
class _Stream:
    """`arrived` None: the message is whole. `granted`: by how much its window was widened; `rest` waits for that."""

    arrived: bytearray | None
    sent: int = 0
    granted: int = 0
    rest: bytes = b""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """Return a header that enters no table, uncompressed (RFC 7541, 6.2.2); both are shorter than 127 bytes."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


_ANSWER_HEAD = b"\x88" + _literal(b"content-type", b"application/grpc")  # 0x88: `:status: 200` of the static table
_STATUS_OK = _literal(b"grpc-status", b"0")
_GREETING = _frame(
    _SETTINGS, 0, 0, struct.pack("!HIHI", _S_MAX_STREAMS, MAX_OPEN, _S_WINDOW, MAX_MESSAGE + _PREFIX.size)
) + _frame(_WINDOW, 0, 0, struct.pack("!I", _WINDOW_IN - _WINDOW_DEFAULT))


class Connection:
    """One connection: feed it what arrives, tell it answers, send what `outgoing` returns."""

    def __init__(self) -> None:
        self._in = bytearray()
        self._out = [_GREETING]
        self._greeted = False
        self._streams: dict[int, _Stream] = {}
        self._last = 0
        self._in_block = 0
        self._window_in = _WINDOW_IN
        self._window_out = self._window_each = _WINDOW_DEFAULT

    def outgoing(self) -> bytes:
        """Return what is to be sent now, once."""
        out, self._out = b"".join(self._out), []
        return out

    def receive(self, data: bytes) -> list[Called | Left]:
        """Take what arrived, and return what it means; raises ProtocolError."""
        found: list[Called | Left] = []
        self._in += data
        if not self._greeted:
            if not _PREFACE.startswith(self._in[: len(_PREFACE)]):
                raise ProtocolError("no HTTP/2")
            if len(self._in) < len(_PREFACE):
                return found
            del self._in[: len(_PREFACE)]
            self._greeted = True
        for kind, flags, stream, payload in self._frames():
            event = self._take(kind, flags, stream, payload)
            if event is not None:
                found.append(event)
        if self._window_in < _WINDOW_IN // 2:
            self._out.append(_frame(_WINDOW, 0, 0, struct.pack("!I", _WINDOW_IN - self._window_in)))
            self._window_in = _WINDOW_IN
        return found

    def answer(self, stream: int, message: bytes) -> None:
        """Answer a call; nothing where its caller has left."""
        call = self._streams.get(stream)
        if call is None:
            return
        self._out.append(_frame(_HEADERS, _END_HEADERS, stream, _ANSWER_HEAD))
        call.rest = _PREFIX.pack(0, len(message)) + message
        self._send_rest(stream, call)

    def refuse(self, stream: int, status: int) -> None:
        """End a call without an answer, with a status of gRPC's; nothing where its caller has left."""
        if self._streams.pop(stream, None) is not None:
            block = _ANSWER_HEAD + _literal(b"grpc-status", str(status).encode())
            self._out.append(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, block))

    def _send_rest(self, stream: int, call: _Stream) -> None:
        """Send what both windows let; the trailers, which need none, after the last of it."""
        while call.rest:
            room = min(_FRAME, self._window_out, self._window_each + call.granted - call.sent)
            if room <= 0:
                return
            part, call.rest = call.rest[:room], call.rest[room:]
            self._out.append(_frame(_DATA, 0, stream, part))
            call.sent += len(part)
            self._window_out -= len(part)
        self._out.append(_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, _STATUS_OK))
        del self._streams[stream]

    def _send_rests(self) -> None:
        for stream, call in [(stream, call) for stream, call in self._streams.items() if call.rest]:
            self._send_rest(stream, call)

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield the frames that are here whole, and keep what is left."""
        data, at = bytes(self._in), 0
        while len(data) - at >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
            size = high << 8 | low
            if size > _FRAME:
                raise ProtocolError("a frame is too long")
            if len(data) - at - _HEAD.size < size:
                break
            at += _HEAD.size + size
            yield kind, flags, stream & _WINDOW_MAX, data[at - size : at]
        del self._in[:at]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> Called | Left | None:
        if self._in_block and (kind != _CONTINUATION or stream != self._in_block):
            raise ProtocolError("a header block is interrupted")
        if kind == _DATA:
            return self._data(flags, stream, payload)
        if kind == _HEADERS:
            self._headers(flags, stream)
        elif kind == _RESET:
            return Left(stream) if self._streams.pop(stream, None) is not None else None
        elif kind == _SETTINGS:
            self._settings(flags, payload)
        elif kind == _PING and not flags & _ACK:
            self._out.append(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW:
            self._grant(stream, payload)
        elif kind == _CONTINUATION:
            if not self._in_block:
                raise ProtocolError("a header block continues that never began")
            self._in_block = 0 if flags & _END_HEADERS else stream
        return None  # priorities, a goodbye, and what is unknown change nothing

    def _headers(self, flags: int, stream: int) -> None:
        if not stream & 1 or stream <= self._last or flags & _END_STREAM or len(self._streams) >= MAX_OPEN:
            raise ProtocolError("a call begins wrongly")
        self._last = stream
        self._in_block = 0 if flags & _END_HEADERS else stream
        self._streams[stream] = _Stream(bytearray())

    def _data(self, flags: int, stream: int, payload: bytes) -> Called | None:
        self._window_in -= len(payload)
        call = self._streams.get(stream)
        if call is None:
            if stream > self._last or not stream:
                raise ProtocolError("data of no call")
            return None  # of one that was reset meanwhile
        if call.arrived is None:
            raise ProtocolError("data after the end")
        if flags & _PADDED:
            payload = payload[1 : len(payload) - payload[0]] if payload and payload[0] < len(payload) else b""
        if len(call.arrived) + len(payload) > MAX_MESSAGE + _PREFIX.size:
            raise ProtocolError("a message is too long")
        call.arrived += payload
        if not flags & _END_STREAM:
            return None
        message, call.arrived = bytes(call.arrived), None
        if len(message) < _PREFIX.size or _PREFIX.unpack_from(message) != (0, len(message) - _PREFIX.size):
            raise ProtocolError("not one plain message")
        return Called(stream, message[_PREFIX.size :])

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & _ACK:
            return
        if len(payload) % 6:
            raise ProtocolError("settings are cut off")
        for name, value in struct.iter_unpack("!HI", payload):
            if name == _S_WINDOW:
                if value > _WINDOW_MAX:
                    raise ProtocolError("a window is too wide")
                self._window_each = value
        self._out.append(_frame(_SETTINGS, _ACK, 0))
        self._send_rests()

    def _grant(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError("a window's size is cut off")
        more = int.from_bytes(payload, "big") & _WINDOW_MAX
        if not stream:
            self._window_out += more
            if not more or self._window_out > _WINDOW_MAX:
                raise ProtocolError("a window is too wide")
            self._send_rests()
        elif (call := self._streams.get(stream)) is not None:
            call.granted += more
            if call.rest:
                self._send_rest(stream, call)
