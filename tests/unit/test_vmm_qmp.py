"""QMP: what comes from a QEMU that a guest may own, in any pieces and any shape."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.vmm import qmp
from space.vmm.driver import VmmError
from space.vmm.qmp import Decoder, Json, Qmp

messages = st.dictionaries(
    st.text(max_size=8), st.recursive(st.none() | st.integers() | st.text(), st.lists), max_size=4
)


@given(st.lists(messages, max_size=6), st.data())
def test_messages_survive_any_division_into_pieces(sent: list[Json], data: st.DataObject) -> None:
    """A stream may be cut anywhere."""
    stream = b"".join(json.dumps(message).encode() + b"\n" for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = Decoder()
    got: list[Json] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:end])
    assert got == sent


@given(st.binary(max_size=200))
def test_anything_else_is_an_error_and_nothing_worse(data: bytes) -> None:
    """Rubbish raises VmmError, or is JSON after all."""
    try:
        Decoder().feed(data + b"\n")
    except VmmError:
        return
    assert all(isinstance(json.loads(line), dict) for line in data.split(b"\n"))


@pytest.mark.parametrize("line", [b"[1]", b'"text"', b"1", b"", b"\xff", b"[" * 100_000], ids=repr)
def test_lines_that_are_no_messages(line: bytes) -> None:
    """Valid JSON of another kind, bytes of no text, and nesting that would exhaust the parser."""
    with pytest.raises(VmmError):
        Decoder().feed(line + b"\n")


def test_a_line_without_end_is_not_collected_for_ever() -> None:
    """Memory stays bounded."""
    decoder = Decoder()
    with pytest.raises(VmmError, match="bytes"):
        _ = [decoder.feed(b"x" * 65536) for _ in range(64)]


class Peer:
    """The other end: plays QEMU, says what a test wants."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.sock.setblocking(False)
        self.events: list[tuple[str, Json]] = []
        self.lost = 0
        self.qmp = Qmp(ours, lambda name, data: self.events.append((name, data)), self._on_lost)

    def _on_lost(self) -> None:
        self.lost += 1

    def say(self, *messages: Mapping[str, object]) -> None:
        """Send messages as QEMU would."""
        self.sock.sendall(b"".join(json.dumps(message).encode() + b"\r\n" for message in messages))

    async def hear(self) -> Json:
        """Return the next command; they are short, so one read is one command."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(5):
            heard: Json = json.loads(await loop.sock_recv(self.sock, 4096))
        return heard


@pytest.fixture
async def peer() -> AsyncGenerator[Peer]:
    """A connection past its greeting."""
    made = Peer()
    async with asyncio.TaskGroup() as group:
        group.create_task(made.qmp.negotiate())
        made.say({"QMP": {"version": {}}})
        assert (await made.hear())["execute"] == "qmp_capabilities"
        made.say({"return": {}})
    yield made
    made.qmp.close()
    made.sock.close()


async def test_answers_find_their_callers_between_events(peer: Peer) -> None:
    """Two commands in flight, events in between: each gets its own."""
    first, second = peer.qmp.send("one"), peer.qmp.send("two", {"a": 1})
    peer.say({"event": "STOP"}, {"return": 1}, {"event": "RESUME", "data": {"x": 1}}, {"error": {"desc": "no such"}})
    assert await first == 1
    with pytest.raises(VmmError, match="refused two: no such"):
        await second
    assert peer.events == [("STOP", {}), ("RESUME", {"x": 1})]


async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(peer: Peer) -> None:
    """A deadline passes; the late answer goes to nobody."""
    with pytest.raises(VmmError, match="no answer to slow"):
        await peer.qmp.execute("slow", timeout_s=0.01)
    quick = peer.qmp.send("quick")
    peer.say({"return": "late"}, {"return": "quick"})
    async with asyncio.timeout(5):
        assert await quick == "quick"


async def test_a_lost_connection_ends_everything_that_waits(peer: Peer) -> None:
    """QEMU's death is told to every caller, once to the owner, and to whoever asks afterwards."""
    waiting = peer.qmp.send("query")
    peer.sock.close()
    with pytest.raises(VmmError, match="control socket"):
        await waiting
    with pytest.raises(VmmError, match="no connection"):
        await peer.qmp.execute("again")
    assert (peer.lost, peer.qmp.open) == (1, False)


@pytest.mark.parametrize("said", [b"rubbish\n", b'{"return": 1}\n'], ids=["rubbish", "answer to nothing"])
async def test_a_peer_that_breaks_the_protocol_is_left(peer: Peer, said: bytes) -> None:
    """No guessing what it meant."""
    peer.sock.sendall(said)
    async with asyncio.timeout(5):
        while peer.qmp.open:
            await asyncio.sleep(0)
    assert peer.lost == 1


async def test_a_descriptor_travels_with_its_command(peer: Peer, tmp_path: Path) -> None:
    """The other end can read the very file."""
    path = tmp_path / "state"
    path.write_text("inside")
    fd = os.open(path, os.O_RDONLY)
    answer = peer.qmp.send("getfd", {"fdname": "state"}, fds=(fd,))
    heard, (received, *_), _, _ = socket.recv_fds(peer.sock, 4096, 4)
    peer.say({"return": {}})
    await answer
    os.close(fd)
    with os.fdopen(received) as file:
        assert file.read() == "inside"
    assert json.loads(heard) == {"execute": "getfd", "arguments": {"fdname": "state"}}


async def test_a_peer_that_does_not_read_is_waited_for(peer: Peer) -> None:
    """What does not fit into the socket now is sent when it does, in order."""
    size = 300_000
    answers = [peer.qmp.send("long", {"n": n, "text": "x" * size}) for n in range(3)]
    heard = b""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10):
        while heard.count(b"\n") < 3:
            heard += await loop.sock_recv(peer.sock, 65536)
    assert [json.loads(line)["arguments"]["n"] for line in heard.splitlines()] == [0, 1, 2]
    peer.say(*({"return": n} for n in range(3)))
    assert [await answer for answer in answers] == [0, 1, 2]


def test_the_control_socket_is_roots_alone_and_takes_any_path_length(tmp_path: Path) -> None:
    """Over 108 bytes of path, where a plain bind fails; mode 0600 from the start."""
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    path = folder / "qmp.sock"
    with qmp.listen(path) as listening:
        assert path.stat().st_mode & 0o777 == 0o600
        with qmp.connect(path) as connected:
            accepted, _ = listening.accept()
            accepted.sendall(b"hello")
            connected.setblocking(True)
            assert connected.recv(5) == b"hello"
            accepted.close()
