"""The ring of events: numbers, gaps, and one sandbox's flood beside another's few."""

import asyncio
import json
from typing import Any

from space.gateway.audit import Audit
from space.model.ids import SandboxId, new_id
from space.wire.gateway import EgressEvent

ONE, TWO = SandboxId(new_id()), SandboxId(new_id())


async def _read(audit: Audit, boot: str = "", after: int = 0) -> list[dict[str, Any]]:
    """Return what a reader gets at once."""
    lines = audit.since(boot, after)
    found = json.loads("[" + (await anext(lines)).decode().strip().replace("\n", ",") + "]")
    if found[0]["type"] == "gap" and found[0].get("why") == "not read in time":
        found += json.loads("[" + (await anext(lines)).decode().strip().replace("\n", ",") + "]")
    await lines.aclose()
    return list(found)


async def test_a_reader_goes_on_where_it_was() -> None:
    audit = Audit()
    first, second = audit.note("verdict", ONE, allowed=True, name="a.test"), audit.note("verdict", TWO, allowed=False)
    events = [EgressEvent.model_validate(line) for line in await _read(audit)]
    assert [(event.seq, event.sandbox, event.allowed) for event in events] == [(first, ONE, True), (second, TWO, False)]
    third = audit.note("traffic", ONE, of=first, why=None)
    assert [line["seq"] for line in await _read(audit, audit.boot, second)] == [third]
    assert "why" not in (await _read(audit, audit.boot, second))[0]
    # numbers of another process say nothing here
    assert [line["seq"] for line in await _read(audit, "another", second)] == [first, second, third]


async def test_what_was_not_read_in_time_is_counted() -> None:
    audit = Audit(size=10)
    for _ in range(30):
        audit.note("verdict", ONE)
    lines = await _read(audit, audit.boot, 5)
    assert (lines[0]["type"], lines[0]["count"], lines[0]["seq"]) == ("gap", 15, 20)
    assert [line["seq"] for line in lines[1:]] == list(range(21, 31))


async def test_a_flood_is_counted_and_leaves_the_others_their_place() -> None:
    """Case R-08: a loop that is refused does not push another sandbox's events out of the ring."""
    audit = Audit()
    kept = audit.note("verdict", TWO, name="kept.test")
    for _ in range(30_000):
        audit.note("verdict", ONE, allowed=False)
    lines = await _read(audit)
    assert lines[0]["seq"] == kept
    assert len(lines) < 8000
    assert audit.note("verdict", TWO) > 30_000  # numbers go on


async def test_a_waiting_reader_is_woken() -> None:
    audit = Audit()
    lines = audit.since("", 0)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(anext(lines))
        await asyncio.sleep(0)
        audit.note("verdict", ONE)
    assert json.loads(waiting.result())["sandbox"] == ONE
