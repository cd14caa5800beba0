"""The server's half of HTTP/2 for decisions: what it makes of bytes, whole and in pieces, and what it refuses."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.gateway.http2 import MAX_MESSAGE, Called, Connection, Left, ProtocolError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
BLOCK = b"\x83"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def grpc(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def call(stream: int, message: bytes, size: int = 16_384) -> bytes:
    body = grpc(message)
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    ends = [END_STREAM if number == len(parts) - 1 else 0 for number in range(len(parts))]
    frames = [frame(DATA, end, stream, part) for end, part in zip(ends, parts, strict=True)]
    return frame(HEADERS, END_HEADERS, stream, BLOCK) + b"".join(frames)


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found = []
    while data:
        size = int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return found


@pytest.fixture
def greeted() -> Connection:
    made = Connection()
    made.receive(PREFACE + frame(SETTINGS, 0, 0))
    made.outgoing()
    return made


def test_it_greets_first_and_acknowledges() -> None:
    made = Connection()
    kinds = [found[:2] for found in frames(made.outgoing())]
    assert kinds == [(SETTINGS, 0), (WINDOW, 0)]
    assert made.receive(PREFACE + frame(SETTINGS, 0, 0) + frame(PING, 0, 0, b"12345678")) == []
    assert frames(made.outgoing()) == [(SETTINGS, ACK, 0, b""), (PING, ACK, 0, b"12345678")]


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6), st.lists(st.integers(1, 40), max_size=200))
def test_calls_arrive_whole_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    made = Connection()
    calls = [call(1 + 2 * number, message, 7) for number, message in enumerate(messages)]
    data = PREFACE + frame(SETTINGS, 0, 0) + b"".join(calls)
    found = []
    for cut in cuts:
        found += made.receive(data[:cut])
        data = data[cut:]
    found += made.receive(data)
    assert found == [Called(1 + 2 * number, message) for number, message in enumerate(messages)]


def test_an_answer_is_headers_data_and_trailers(greeted: Connection) -> None:
    greeted.receive(call(1, b"question") + call(3, b""))
    greeted.answer(1, b"answer")
    greeted.refuse(3, 13)
    (head, data, end, refusal) = frames(greeted.outgoing())
    assert head[:3] == (HEADERS, END_HEADERS, 1)
    assert head[3].startswith(b"\x88")
    assert b"application/grpc" in head[3]
    assert data == (DATA, 0, 1, grpc(b"answer"))
    assert end == (HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x0bgrpc-status\x010")
    assert refusal[:3] == (HEADERS, END_HEADERS | END_STREAM, 3)
    assert refusal[3].endswith(b"grpc-status\x0213")
    greeted.answer(1, b"again")
    assert greeted.outgoing() == b""


def test_a_call_that_is_left_gets_no_answer(greeted: Connection) -> None:
    greeted.receive(call(1, b"question"))
    assert greeted.receive(frame(RESET, 0, 1, b"\0\0\0\x08")) == [Left(1)]
    greeted.answer(1, b"answer")
    assert greeted.outgoing() == b""
    assert greeted.receive(frame(RESET, 0, 1, b"\0\0\0\x08")) == []
    late = frame(HEADERS, END_HEADERS, 3, BLOCK) + frame(RESET, 0, 3, b"\0\0\0\x08") + frame(DATA, 1, 3, grpc(b"x"))
    assert greeted.receive(late) == [Left(3)]


def test_it_sends_no_more_than_the_peer_takes(greeted: Connection) -> None:
    """Both windows count, that of the stream and that of the connection, and both may be widened later."""
    greeted.receive(frame(SETTINGS, 0, 0, struct.pack("!HI", 4, 10)) + call(1, b"a") + call(3, b"b"))
    greeted.outgoing()
    greeted.answer(1, b"x" * 20)
    assert [found[3] for found in frames(greeted.outgoing())[1:]] == [grpc(b"x" * 20)[:10]]
    greeted.receive(frame(WINDOW, 0, 1, struct.pack("!I", 5)))
    assert [found[3] for found in frames(greeted.outgoing())] == [b"x" * 5]
    greeted.receive(frame(SETTINGS, 0, 0, struct.pack("!HI", 4, 200_000)))
    (_, rest, end) = frames(greeted.outgoing())
    assert (rest[3], end[1]) == (b"x" * 10, END_HEADERS | END_STREAM)
    greeted.answer(3, b"y" * 100_000)
    sent = sum(len(found[3]) for found in frames(greeted.outgoing()) if found[0] == DATA)
    assert sent == 65_535 - 25
    greeted.receive(frame(WINDOW, 0, 0, struct.pack("!I", 2**20)))
    *data, end = frames(greeted.outgoing())
    assert sum(len(found[3]) for found in data) == 100_005 - sent
    assert max(len(found[3]) for found in data) == 16_384
    assert end[1] == END_HEADERS | END_STREAM


def test_it_lets_the_peer_go_on(greeted: Connection) -> None:
    """What it takes is given back to the peer's window before that is used up."""
    used = widened = 0
    for number in range(40):
        greeted.receive(call(1 + 2 * number, bytes(MAX_MESSAGE)))
        used += MAX_MESSAGE + 5
        greeted.answer(1 + 2 * number, b"")
        said = [found for found in frames(greeted.outgoing()) if found[0] == WINDOW]
        widened += sum(int.from_bytes(found[3], "big") for found in said)
    assert used / 2 < widened <= used


def test_padding_and_continued_headers_are_understood(greeted: Connection) -> None:
    padded = frame(DATA, PADDED | END_STREAM, 1, b"\x03" + grpc(b"hello") + b"\0\0\0")
    head = frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1, BLOCK) + frame(CONTINUATION, END_HEADERS, 1, BLOCK)
    assert greeted.receive(head + padded) == [Called(1, b"hello")]


@pytest.mark.parametrize(
    "data",
    [
        frame(HEADERS, END_HEADERS, 2, BLOCK),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, BLOCK),
        frame(HEADERS, END_HEADERS, 3, BLOCK) + frame(HEADERS, END_HEADERS, 1, BLOCK),
        frame(HEADERS, 0, 1, BLOCK) + frame(DATA, END_STREAM, 1, grpc(b"x")),
        frame(CONTINUATION, END_HEADERS, 1, BLOCK),
        frame(DATA, 0, 1, b"x"),
        call(1, b"x") + frame(DATA, 0, 1, b"x"),
        frame(HEADERS, END_HEADERS, 1, BLOCK) + frame(DATA, END_STREAM, 1, b"\1\0\0\0\1x"),
        frame(HEADERS, END_HEADERS, 1, BLOCK) + frame(DATA, END_STREAM, 1, b"\0\0\0\0\2x"),
        frame(HEADERS, END_HEADERS, 1, BLOCK) + frame(DATA, END_STREAM, 1, b""),
        call(1, bytes(MAX_MESSAGE + 1)),
        b"\0\x40\x01\0\0\0\0\0\x01",
        frame(WINDOW, 0, 0, struct.pack("!I", 2**31 - 1)),
        frame(WINDOW, 0, 0, b"\0\0\0\0"),
        frame(SETTINGS, 0, 0, struct.pack("!HI", 4, 2**31)),
        frame(SETTINGS, 0, 0, b"\0\4\0"),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(greeted: Connection, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        greeted.receive(data)


def test_what_is_no_http2_ends_it_at_once() -> None:
    with pytest.raises(ProtocolError):
        Connection().receive(b"GET / HTTP/1.1\r\n")
