"""What gateways decide, from a worker's stream into the database and out to whoever asks."""

import asyncio
import contextlib
import datetime
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import control_plane, worker_socket
from tests.support.control_plane import Api
from tests.support.rows import insert_sandbox, insert_template
from tests.support.worker_socket import Told

from space.control import egress_events as events
from space.controllers import egress as controller
from space.model import egress_alarms
from space.model.errors import NotFound
from space.model.ids import ProjectId, SandboxId, WorkerId
from space.model.lifecycle import State
from space.store import egress_events as event_rows
from space.store.db import Database
from space.store.notices import Channel

Json = dict[str, Any]


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    """A worker's socket."""
    async with worker_socket.listening(tmp_path / "worker.sock") as found:
        yield found


@pytest.fixture
async def storing(db: Database, told: Told, tmp_path: Path) -> AsyncIterator[Api]:
    """The api with that worker, whose events are being stored."""
    async with control_plane.api_over(db, tmp_path / "worker.sock") as made:
        link = made.plane.workers.links[0]
        link.id = WorkerId("w1")
        await insert_template(db, made.project)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(controller.store_events(made.plane, link))]
            tasks.append(group.create_task(made.plane.notices.run()))
            yield made
            for task in tasks:
                task.cancel()


async def sandbox_of(api: Api) -> SandboxId:
    """Return a running sandbox."""
    return (await insert_sandbox(api.plane.db, api.project, state=State.RUNNING, worker="w1")).id


def event(sandbox: str, seq: int, boot: str = "b1", **more: object) -> Json:
    """Return an event as a gateway tells it."""
    now = datetime.datetime.now(datetime.UTC).isoformat()
    base: Json = {"type": "verdict", "boot": boot, "seq": seq, "time": now, "sandbox": sandbox, "protocol": "https"}
    return base | {"name": "allowed.test", "allowed": True, "rule": 0} | more


async def lines(api: Api, sandbox: str, query: str = "") -> list[Json]:
    """Return what the api tells now."""
    answer = await api.http.get(f"/v1/sandboxes/{sandbox}/egress{query}")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


async def stored(api: Api, sandbox: str, count: int) -> list[Json]:
    """Wait until there are so many."""
    async with asyncio.timeout(30):
        while len(found := await lines(api, sandbox)) < count:
            await asyncio.sleep(0.02)
    return found


async def test_events_are_kept_in_order_and_once(storing: Api, told: Told) -> None:
    one, other = await sandbox_of(storing), await sandbox_of(storing)
    for line in (event(one, 1), event(other, 2), event(one, 3, allowed=False, rule=None), event("gone" * 5, 4)):
        told.events.put_nowait(line)
    found = await stored(storing, one, 2)
    assert [(line["seq"], line["allowed"]) for line in found] == [(1, True), (3, False)]
    assert found[0]["number"] < found[1]["number"]
    assert await lines(storing, one, f"?after={found[0]['number']}") == found[1:]
    assert await lines(storing, one, "?limit=1") == found[:1]
    told.events.put_nowait(None)  # the worker goes away, and comes back with what it told before
    for line in (event(one, 3), event(one, 5)):
        told.events.put_nowait(line)
    assert [line["seq"] for line in await stored(storing, one, 3)] == [1, 3, 5]
    assert told.streams == ["/v1/egress?boot=&after=0", "/v1/egress?boot=b1&after=4"]


async def test_what_was_read_before_a_gateway_died_is_stored(storing: Api, told: Told) -> None:
    sandbox = await sandbox_of(storing)
    for line in (event(sandbox, 1), None, event(sandbox, 1, boot="b2"), None):
        told.events.put_nowait(line)
    assert [line["boot"] for line in await stored(storing, sandbox, 2)] == ["b1", "b2"]


async def test_following_sees_what_comes(storing: Api, told: Told) -> None:
    sandbox = await sandbox_of(storing)
    told.events.put_nowait(event(sandbox, 1))
    await stored(storing, sandbox, 1)
    pages = events.followed(storing.plane, storing.project, sandbox, 0, 3600)
    async with asyncio.timeout(30), contextlib.aclosing(pages):
        assert [record.event["seq"] for record in await anext(pages)] == [1]
        told.events.put_nowait(event(sandbox, 2))
        assert [record.event["seq"] for record in await anext(pages)] == [2]


async def test_listeners_are_told_of_the_sandbox(storing: Api, told: Told) -> None:
    sandbox, other = await sandbox_of(storing), await sandbox_of(storing)
    notices = storing.plane.notices
    numbers = itertools.count(1)
    with notices.changes(Channel.EGRESS, sandbox) as changed, notices.changes(Channel.EGRESS, other) as others:
        async with asyncio.timeout(30):
            for _ in range(2):  # the first may be that all may have changed, since listening has begun
                changed.clear()
                others.clear()
                while not changed.is_set():
                    told.events.put_nowait(event(sandbox, next(numbers)))
                    await asyncio.sleep(0.2)
        assert not others.is_set()


async def test_a_quiet_stream_says_that_it_lives(storing: Api) -> None:
    sandbox = await sandbox_of(storing)
    pages = events.followed(storing.plane, storing.project, sandbox, 0, 0)
    async with asyncio.timeout(30), contextlib.aclosing(pages):
        assert await anext(pages) == []


async def test_a_sandbox_keeps_its_newest(storing: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_rows, "KEEP", 5)
    sandbox, other = await sandbox_of(storing), await sandbox_of(storing)
    now = datetime.datetime.now(datetime.UTC)
    old = now - datetime.timedelta(days=event_rows.KEEP_DAYS + 1)
    async with storing.plane.db.transaction() as tx:
        rows = [(sandbox, seq, now, event(sandbox, seq)) for seq in range(1, 21)]
        await event_rows.append(tx, WorkerId("w2"), "b", [*rows, (other, 21, old, event(other, 21))])
    await event_rows.trim(storing.plane.db, sandbox)
    await event_rows.trim(storing.plane.db, other)
    assert [line["seq"] for line in await lines(storing, sandbox)] == [16, 17, 18, 19, 20]
    assert len(await lines(storing, other)) == 1, "fewer than the bound"
    await event_rows.expire(storing.plane.db)
    assert await lines(storing, other) == [], "too old"
    assert len(await lines(storing, sandbox)) == 5


async def test_too_much_of_something_is_an_alarm_and_a_figure(
    storing: Api, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_alarms, "DENIED", 3)
    sandbox = await sandbox_of(storing)
    for seq in range(1, 4):
        told.events.put_nowait(event(sandbox, seq, allowed=False))
    found = await stored(storing, sandbox, 4)
    assert [(line["type"], line["seq"]) for line in found[2:]] == [("verdict", 3), ("alarm", -3)]
    assert found[3]["why"].startswith("denied_burst: 3 refusals in ")
    told.events.put_nowait(None)
    told.events.put_nowait(event(sandbox, 4))
    await stored(storing, sandbox, 5)
    assert told.streams[-1] == "/v1/egress?boot=b1&after=3"
    text = (await storing.http.get("/metrics")).text
    assert 'space_egress_events_total{type="denied"} 3.0' in text
    assert 'space_egress_events_total{type="alarm"} 1.0' in text


async def test_held_requests_are_listed_until_they_are_answered_or_over(storing: Api, told: Told) -> None:
    sandbox = await sandbox_of(storing)
    ask: Json = {"type": "ask", "allowed": None, "port": 443, "method": "GET", "path": "/x"}
    told.events.put_nowait(event(sandbox, 1, **ask, wait_s=60))
    told.events.put_nowait(event(sandbox, 2, **ask, wait_s=60))
    told.events.put_nowait(event(sandbox, 3, **ask, wait_s=0))
    told.events.put_nowait(event(sandbox, 4, of=1))
    await stored(storing, sandbox, 4)
    asks = (await storing.http.get(f"/v1/sandboxes/{sandbox}/asks")).json()["asks"]
    assert [(one["id"], one["host"], one["method"], one["path"]) for one in asks] == [(2, "allowed.test", "GET", "/x")]
    answer = await storing.http.post(f"/v1/sandboxes/{sandbox}/asks/2", json={"allow": True})
    assert answer.status_code == 204
    assert told.to(f"/v1/sandboxes/{sandbox}/asks/2") == [{"allow": True}]
    assert (await storing.http.post(f"/v1/sandboxes/{sandbox}/asks/2", json={})).status_code == 422


async def test_another_project_sees_nothing(storing: Api) -> None:
    sandbox = await sandbox_of(storing)
    with pytest.raises(NotFound):
        await events.listed(storing.plane, ProjectId("other"), sandbox, 0, 10)
