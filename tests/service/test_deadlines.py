"""Deadlines in the rows: when they fire, what moves them, and that no clock that is set does."""

import asyncio
import datetime

import pytest
from tests.support.rows import insert_sandbox, insert_template

from space.control.activity import Activity
from space.control.clock import Clock
from space.model.ids import ProjectId, SandboxId
from space.model.lifecycle import Event, State
from space.model.sandbox import Deadlines, Desired, OnTimeout, Sandbox
from space.store import deadlines, projects, sandboxes, wishes
from space.store.db import Database
from space.store.wishes import Change

DAY = 86400.0


@pytest.fixture
async def project(db: Database) -> ProjectId:
    made = await projects.ensure(db, "p")
    await insert_template(db, made)
    return made


class Host:
    """A host's clock since boot, and the database's wall clock, both in the test's hand."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.since_boot_s = 1000.0
        self.boot = "first"

    async def set_wall(self, offset_s: float) -> None:
        """Let the database's clock be this far from the real one."""
        await self._db.execute(
            "CREATE OR REPLACE FUNCTION wall_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
            f"'SELECT clock_timestamp() + interval ''{offset_s} seconds'''"
        )

    async def clock(self) -> Clock:
        """Return the clock of a process that has just started."""
        made = Clock(self.boot, lambda: self.since_boot_s)
        await made.compare(self._db)
        return made


@pytest.fixture
async def host(db: Database) -> Host:
    """A host at the real time."""
    made = Host(db)
    await made.set_wall(0)
    return made


def seconds(first: datetime.datetime, second: datetime.datetime) -> float:
    return (second - first).total_seconds()


@pytest.mark.parametrize("step_s", [DAY, -DAY, 30.0, -30.0])
async def test_setting_the_clock_moves_no_steady_time(db: Database, host: Host, step_s: float) -> None:
    clock = await host.clock()
    before = clock.now()
    await host.set_wall(step_s)
    assert clock.now() == before, "between a step and its discovery too"
    await clock.compare(db)
    assert abs(seconds(before, clock.now())) < 1
    shown = clock.shown(before)
    assert shown is not None
    assert abs(seconds(before, shown) - step_s) < 1, "shown as the wall clock has it now"
    host.since_boot_s += 2
    assert 1.9 < seconds(before, clock.now()) < 3.1


async def test_a_step_while_no_process_ran_is_found_by_the_next(db: Database, host: Host) -> None:
    before = (await host.clock()).now()
    await host.set_wall(DAY)
    assert abs(seconds(before, (await host.clock()).now())) < 1


async def test_two_processes_undo_a_step_once(db: Database, host: Host) -> None:
    first, second = await host.clock(), await host.clock()
    before = first.now()
    await host.set_wall(-DAY)
    async with asyncio.TaskGroup() as group:
        for clock in (first, second, first, second):
            group.create_task(clock.compare(db))
    assert abs(seconds(before, first.now())) < 1
    assert abs(seconds(before, second.now())) < 1


async def test_a_host_that_boots_goes_on_from_the_wall_clock_and_never_back(db: Database, host: Host) -> None:
    before = (await host.clock()).now()
    host.boot, host.since_boot_s = "second", 5.0
    await host.set_wall(600)
    assert 599 < seconds(before, (await host.clock()).now()) < 610, "it was off for ten minutes"
    host.boot = "third"
    await host.set_wall(-DAY)
    assert 599 < seconds(before, (await host.clock()).now()) < 610, "with a clock that forgot the date"


async def test_drift_is_followed(db: Database, host: Host) -> None:
    clock = await host.clock()
    before = clock.now()
    for drift in range(1, 6):
        await host.set_wall(drift * 0.5)
        await clock.compare(db)
    assert 2 < seconds(before, clock.now()) < 4


async def insert(
    db: Database,
    project: ProjectId,
    state: State = State.RUNNING,
    now: datetime.datetime | None = None,
    **given: object,
) -> Sandbox:
    """Record a sandbox with these deadlines, counted from `now`."""
    made = await insert_sandbox(db, project, state=state, worker="w")
    changed = await wishes.change(db, made.id, Change(None, Deadlines(**given), rearmed=True), now)  # type: ignore[arg-type] # fields
    assert changed is not None
    return changed


async def read(db: Database, sandbox: SandboxId) -> Sandbox:
    found = await sandboxes.get(db, sandbox)
    assert found is not None
    return found


def after(row: Sandbox, seconds: float) -> datetime.datetime:
    return row.last_active_at + datetime.timedelta(seconds=seconds)


async def test_an_idle_one_is_claimed_by_one_and_wished_suspended(db: Database, project: ProjectId) -> None:
    row = await insert(db, project, idle_timeout_s=60)
    assert await deadlines.claim_idle(db, after(row, 59), after(row, 59), 10) == []
    found: list[Sandbox] = []

    async def claim() -> None:
        found.extend(await deadlines.claim_idle(db, after(row, 61), after(row, 61), 10))

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(claim())
    assert [one.id for one in found] == [row.id]
    assert await deadlines.suspend_idle(db, found[0], "idle for 60 s")
    wished = await read(db, row.id)
    assert (wished.spec.desired, wished.spec.desired_reason) == (Desired.SUSPENDED, "idle for 60 s")
    assert [*await sandboxes.lagging(db, 10)] == [row.id]


@pytest.mark.parametrize("state", [s for s in State if s not in (State.RUNNING, State.PAUSED)])
async def test_only_what_is_awake_is_idle(db: Database, project: ProjectId, state: State) -> None:
    made = await insert_sandbox(db, project, state=state, worker="w")
    late = made.last_active_at + datetime.timedelta(days=3)
    assert await deadlines.claim_idle(db, late, late, 10) == []


async def test_a_use_or_a_change_after_the_claim_wins(db: Database, project: ProjectId) -> None:
    row = await insert(db, project, idle_timeout_s=60)
    (claimed,) = await deadlines.claim_idle(db, after(row, 61), after(row, 61), 10)
    await deadlines.touch(db, {row.id: after(row, 62)})
    assert not await deadlines.suspend_idle(db, claimed, "idle")
    assert (await read(db, row.id)).idle_at == after(row, 122)
    (claimed,) = await deadlines.claim_idle(db, after(row, 123), after(row, 123), 10)
    await wishes.change(db, row.id, Change(None, Deadlines(idle_timeout_s=None), rearmed=False))
    assert not await deadlines.suspend_idle(db, claimed, "idle")
    assert (await read(db, row.id)).idle_at is None, "never"


async def test_what_several_processes_saw_is_written_and_the_latest_stays(db: Database, project: ProjectId) -> None:
    rows = [await insert(db, project, idle_timeout_s=60) for _ in range(20)]
    clocks = [Clock(), Clock()]
    seen = [Activity(clock) for clock in clocks]
    for _ in range(3):
        for activity in seen:
            for row in rows:
                activity.touch(row.id)
        async with asyncio.TaskGroup() as group:
            for activity in seen:
                group.create_task(activity.flush(db))
    for row in rows:
        found = await read(db, row.id)
        assert found.last_active_at > row.last_active_at
        assert found.idle_at == found.last_active_at + datetime.timedelta(seconds=60)
    before = await read(db, rows[0].id)
    await deadlines.touch(db, {rows[0].id: after(rows[0], -100)})
    assert await read(db, rows[0].id) == before


async def test_a_timeout_deletes_or_suspends(db: Database, project: ProjectId) -> None:
    gone = await insert(db, project, timeout_s=60)
    kept = await insert(db, project, timeout_s=60, on_timeout=OnTimeout.SUSPEND)
    never = await insert(db, project)
    early = min(after(gone, 59), after(kept, 59))
    assert await deadlines.expire(db, early, 10) == []
    late = after(kept, 61)
    assert set(await deadlines.expire(db, late, 10)) == {gone.id, kept.id}
    assert [(await read(db, one.id)).spec.desired for one in (gone, kept, never)] == [
        Desired.DELETED, Desired.SUSPENDED, Desired.RUNNING,
    ]  # fmt: skip
    assert await deadlines.expire(db, late, 10) == [], "once"


async def test_a_timeout_that_suspended_is_spent_and_counts_anew_when_it_is_wanted_again(
    db: Database, project: ProjectId
) -> None:
    row = await insert(db, project, timeout_s=600, on_timeout=OnTimeout.SUSPEND)
    await deadlines.expire(db, after(row, 601), 10)
    for event in (Event.SUSPEND_BEGUN, Event.SUSPENDED):
        async with db.transaction() as tx:
            row = await sandboxes.move(tx, await read(db, row.id), event, reason="timeout")
    assert (row.expires_at, row.spec.deadlines.timeout_s, row.settled) == (None, 600, True)
    woken = await wishes.wish(db, row.id, Desired.RUNNING)
    assert woken.expires_at == woken.last_active_at + datetime.timedelta(seconds=600)
    assert woken.spec.deadlines == row.spec.deadlines, "what is configured stays"


async def test_a_suspension_at_a_deadline_that_failed_is_tried_again(db: Database, project: ProjectId) -> None:
    row = await insert(db, project, idle_timeout_s=600)
    (claimed,) = await deadlines.claim_idle(db, after(row, 601), after(row, 601), 10)
    assert await deadlines.suspend_idle(db, claimed, "idle")
    now = after(row, 602)
    for event in (Event.SUSPEND_BEGUN, Event.SUSPEND_FAILED):
        async with db.transaction() as tx:
            row = await sandboxes.move(tx, await read(db, row.id), event, reason="no room", now=now)
    assert (row.state, row.spec.desired, row.settled) == (State.RUNNING, Desired.RUNNING, True)
    later = now + datetime.timedelta(seconds=sandboxes.RETRY_S)
    assert [one.id for one in await deadlines.claim_idle(db, later, later, 10)] == [row.id]


@pytest.mark.parametrize("first", ["change", "expiry"])
async def test_whichever_is_written_first_holds(db: Database, project: ProjectId, first: str) -> None:
    row = await insert(db, project, timeout_s=60)
    late = after(row, 61)
    extended = Change(None, Deadlines(timeout_s=600), rearmed=True)

    async def change(tx: Database) -> Sandbox | None:
        return await wishes.change(tx, row.id, extended, late)

    if first == "change":
        async with db.transaction() as tx:
            assert await wishes.change(tx, row.id, extended, late) is not None
            assert await deadlines.expire(db, late, 10) == [], "it is left alone while somebody writes it"
        assert await deadlines.expire(db, late, 10) == []
        assert (await read(db, row.id)).spec.desired is Desired.RUNNING
        return
    async with asyncio.TaskGroup() as group, db.transaction() as tx:
        assert await deadlines.expire(tx, late, 10) == [row.id]
        changing = group.create_task(change(db))
        await _blocked(db)
    assert changing.result() is None, "there is nothing to change any more"
    assert (await read(db, row.id)).spec.desired is Desired.DELETED


async def _blocked(db: Database) -> None:
    """Wait until some statement waits for a lock."""
    async with asyncio.timeout(10):
        while (
            await db.fetchrow(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            is None
        ):
            await asyncio.sleep(0.02)


async def test_changes_and_expiry_at_once_agree(db: Database, project: ProjectId) -> None:
    rows = [await insert(db, project, timeout_s=60) for _ in range(20)]
    late = after(rows[-1], 61)
    extended = Change(None, Deadlines(timeout_s=600), rearmed=True)
    kept: set[SandboxId] = set()
    fired: set[SandboxId] = set()

    async def change(row: Sandbox) -> None:
        if await wishes.change(db, row.id, extended, late) is not None:
            kept.add(row.id)

    async def expire() -> None:
        fired.update(await deadlines.expire(db, late, 3))

    async with asyncio.TaskGroup() as group:
        for row in rows:
            group.create_task(change(row))
            group.create_task(expire())
    fired.update(await deadlines.expire(db, late, 100))
    assert kept | fired == {row.id for row in rows}
    assert not kept & fired


async def test_a_lease_from_before_the_clock_was_set_back_is_free(db: Database, project: ProjectId) -> None:
    made = await insert_sandbox(db, project)
    held = await sandboxes.acquire(db, made.id, sandboxes.Lease("dead", DAY))
    assert held is not None
    assert await sandboxes.acquire(db, made.id, sandboxes.Lease("heir", 5)) is not None


async def test_the_deadlines_of_many_are_found_by_index(db: Database, project: ProjectId) -> None:
    await insert(db, project)
    text = "\n".join(
        row[0]
        for row in await db.fetch(
            "EXPLAIN SELECT id FROM sandboxes WHERE state IN ('running', 'paused') AND "
            "desired IN ('running', 'paused') AND idle_at <= now() ORDER BY idle_at LIMIT 32 FOR UPDATE SKIP LOCKED"
        )
    )
    assert "sandboxes_idle" in text
