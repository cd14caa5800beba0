"""`space egress log`: pages, streams that go on, and lines that a terminal can show."""

import contextlib
from collections.abc import Sequence

import pytest
from tests.support.transcript import Answer, playing

from space.cli import egress

ID = "a" * 20


def event(number: int, **more: object) -> dict[str, object]:
    """Return a line of the stream."""
    return {"number": number, "type": "verdict", "time": "t", "boot": "b", "seq": number, "allowed": True} | more


async def read(
    monkeypatch: pytest.MonkeyPatch, answers: Sequence[Answer], *, follow: bool, most: int
) -> tuple[list[int], list[str]]:
    """Return the numbers of at most so many events, and what was asked for."""
    found: list[int] = []
    async with playing(answers) as transcript:
        monkeypatch.setenv("SPACE_URL", transcript.url)
        monkeypatch.setenv("SPACE_API_KEY", "e2b_" + "0" * 40)
        async with contextlib.aclosing(egress.events_of(ID, follow=follow)) as events:
            async for one in events:
                found.append(one["number"])
                if len(found) == most:
                    break
    return found, [target for _, target, _ in transcript.asked]


async def test_all_pages_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "_PAGE", 2)
    answers = [Answer([event(3), event(7)]), Answer([event(9)])]
    numbers, asked = await read(monkeypatch, answers, follow=False, most=100)
    assert numbers == [3, 7, 9]
    assert asked == [f"/v1/sandboxes/{ID}/egress?after=0&limit=2", f"/v1/sandboxes/{ID}/egress?after=7&limit=2"]


async def test_following_goes_on_where_a_stream_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [Answer([event(3), {"type": "keepalive"}]), Answer([event(4)])]
    numbers, asked = await read(monkeypatch, answers, follow=True, most=2)
    assert numbers == [3, 4]
    assert asked == [f"/v1/sandboxes/{ID}/egress?after=0&follow=1", f"/v1/sandboxes/{ID}/egress?after=3&follow=1"]


def test_an_event_is_a_line() -> None:
    line = egress.line_of(
        event(
            5,
            method="GET",
            protocol="https",
            name="a.test",
            port=443,
            path="/x",
            allowed=False,
            why="no rule allows it",
        )
    )
    assert line == "t #5 denied GET https://a.test:443/x no rule allows it"
    traffic = event(
        6, type="traffic", allowed=None, protocol="tcp", address="203.0.113.9", port=22, sent_bytes=0, ms=1.5
    )
    assert egress.line_of(traffic) == "t #6 traffic tcp://203.0.113.9:22 sent_bytes=0 ms=1.5"
