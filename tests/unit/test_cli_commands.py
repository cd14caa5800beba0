"""A command followed through broken connections: nothing lost, nothing twice; its exit status as a shell gives it."""

import base64
from collections.abc import AsyncGenerator

import httpx2
import pytest
from tests.support.transcript import Answer, playing

from space.cli.client import Api, ndjson
from space.cli.commands import Command, Exit
from space.model.errors import NotFound, SandboxFailed, Unavailable

Line = dict[str, object]
_START: Line = {"type": "start", "command_id": "c1", "pid": 7}
_ID = (("x-command-id", "c1"),)


def _out(offset: int, text: str, stream: str = "stdout") -> Line:
    return {"type": stream, "offset": offset, "data": base64.b64encode(text.encode()).decode()}


def _exit(code: int | None = 0, signal: str | None = None) -> Line:
    return {"type": "exit", "code": code, "signal": signal, "timed_out": False, "next_offset": 0, "duration_ms": 1}


async def _follow(url: str) -> tuple[Exit, list[tuple[str, bytes]]]:
    written: list[tuple[str, bytes]] = []
    async with httpx2.AsyncClient(base_url=url) as http:
        ended = await Command(Api(http, url), "s" * 20).run({"args": ["x"]}, lambda s, d: written.append((s, d)))
    return ended, written


async def test_a_stream_without_trouble() -> None:
    answer = Answer([_START, _out(0, "a"), {"type": "keepalive"}, _out(1, "b", "stderr"), _exit(3)], headers=_ID)
    async with playing([answer]) as transcript:
        ended, written = await _follow(transcript.url)
    assert ended.status == 3
    assert written == [("stdout", b"a"), ("stderr", b"b")]


async def test_a_broken_stream_goes_on_from_its_offset() -> None:
    answers = [
        Answer([_START, _out(0, "one"), _out(3, "two")], headers=_ID, breaks=True),
        Answer([_out(6, "three")], breaks=True),
        Answer([{"code": "unavailable", "title": "t", "status": 503, "detail": "d"}], status=503),
        Answer([_out(11, "four"), _exit()]),
    ]
    async with playing(answers) as transcript:
        ended, written = await _follow(transcript.url)
    assert b"".join(data for _, data in written) == b"onetwothreefour"
    assert ended.status == 0
    assert [target.rpartition("=")[2] for _, target, _ in transcript.asked[1:]] == ["6", "11", "11"]


async def test_an_end_without_an_exit_is_a_break_too() -> None:
    answers = [Answer([_START, _out(0, "a")], headers=_ID), Answer([_exit(4)])]
    async with playing(answers) as transcript:
        ended, _ = await _follow(transcript.url)
    assert ended.status == 4


async def test_dropped_output_is_told_and_passed_over() -> None:
    answers = [
        Answer([_START, {"type": "gap", "offset": 0, "next_offset": 100}], headers=_ID, breaks=True),
        Answer([_out(100, "rest"), _exit()]),
    ]
    async with playing(answers) as transcript:
        _, written = await _follow(transcript.url)
    assert written[0] == ("gap", b"100 bytes of output were dropped: more than is kept")
    assert transcript.asked[1][1].endswith("from=100")


@pytest.mark.parametrize(
    ("code", "status", "raised"), [("sandbox_failed", 409, SandboxFailed), ("not_found", 404, NotFound)]
)
async def test_a_sandbox_that_is_gone_ends_the_following(code: str, status: int, raised: type[Exception]) -> None:
    gone: Line = {"code": code, "title": "t", "status": status, "detail": "its VM is dead: exit 137"}
    answers = [Answer([_START], headers=_ID, breaks=True), Answer([gone], status=status)]
    async with playing(answers) as transcript:
        with pytest.raises(raised, match="exit 137"):
            await _follow(transcript.url)


async def test_a_command_that_never_started_is_not_started_twice() -> None:
    async with playing([Answer(breaks=True, headers=())]) as transcript:
        with pytest.raises(Unavailable):
            await _follow(transcript.url)
    assert len(transcript.asked) == 1


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (Exit(0, None, False), 0),
        (Exit(255, None, False), 255),
        (Exit(None, "SIGKILL", False), 137),
        (Exit(None, "SIGINT", False), 130),
        (Exit(None, "SIGKILL", True), 124),
        (Exit(None, "SIGNEW", False), 128),
    ],
)
def test_exit_statuses_are_those_of_a_shell(ended: Exit, status: int) -> None:
    assert ended.status == status


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "stdout"},
        {"type": "stdout", "offset": -1, "data": ""},
        {"type": "gap", "offset": 0, "next_offset": "\x1b[31m"},
        {"type": "exit", "code": 1 << 40, "signal": None},
        {"type": "exit", "code": None, "signal": ["x"]},
    ],
)
async def test_an_event_that_makes_no_sense_is_an_error_with_words(odd: Line) -> None:
    async with playing([Answer([_START, odd], headers=_ID)]) as transcript:
        with pytest.raises(Unavailable, match="taken its place"):
            await _follow(transcript.url)


@pytest.mark.parametrize("ident", ["../../../keys?x=", "", "a/b", "x" * 65])
async def test_a_guests_command_id_leads_the_users_key_nowhere_else(ident: str) -> None:
    async with playing([Answer([_START], headers=(("x-command-id", ident),), breaks=True)]) as transcript:
        with pytest.raises(Unavailable, match="taken its place"):
            await _follow(transcript.url)
    assert len(transcript.asked) == 1


@pytest.mark.parametrize("line", [b"[]\n", b"[" * 100_000 + b"\n", b"{", b"a" * (1 << 20) + b"a"])
async def test_lines_of_a_stream_are_objects_of_bounded_length(line: bytes) -> None:
    async def endless() -> AsyncGenerator[bytes]:
        yield line
        yield line
        raise AssertionError("read on")

    with pytest.raises(Unavailable):
        async for _ in ndjson(httpx2.Response(200, content=endless() if len(line) > 1 << 20 else line)):
            pass
