"""The plain case of pause, resume, suspend and restore is one statement, and is what the locked way does with it."""

import asyncio
import dataclasses
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.support import control_plane, worker_socket
from tests.support.control_plane import Api
from tests.support.rows import insert_sandbox, insert_template
from tests.support.worker_socket import Told

from space.control import lifecycle
from space.control.clock import Clock
from space.control.lifecycle import WISHED, Wished
from space.control.plane import Plane
from space.model.convergence import PLAIN
from space.model.errors import SpaceError
from space.model.ids import OperationId, ProjectId, SandboxId, WorkerId, new_id
from space.model.lifecycle import Event, State
from space.model.operation import OperationKind
from space.model.sandbox import Deadlines, Desired, Sandbox
from space.store import deadlines, operations, sandboxes, wishes
from space.store.db import Database, Queries

KINDS = (OperationKind.PAUSE, OperationKind.RESUME, OperationKind.SUSPEND, OperationKind.RESTORE)
_OWN = ("id", "created_at", "updated_at", "started_at", "lease_until")
"""What two rows that were written alike do not have in common."""


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Told]:
    async with worker_socket.listening(tmp_path / "worker.sock") as found:
        yield found


@pytest.fixture
async def api(db: Database, tmp_path: Path, worker: Told) -> AsyncIterator[Api]:
    """The api, with a worker that it has met, at a moment that does not pass."""
    async with control_plane.api_over(db, tmp_path / "worker.sock") as made:
        made.plane.workers.links[0].id = WorkerId("w1")
        await insert_template(db, made.project)
        yield dataclasses.replace(made, plane=dataclasses.replace(made.plane, clock=Clock(since_boot=lambda: 100.0)))


@pytest.fixture
async def running(api: Api) -> Sandbox:
    return await insert_sandbox(api.plane.db, api.project, state=State.RUNNING, worker="w1")


async def plainly(
    plane: Plane, project: ProjectId, sandbox: SandboxId, kind: OperationKind, tx: Queries | None = None
) -> Sandbox | None:
    return await wishes.wish_plain(
        tx or plane.db, project, sandbox, WISHED[kind], reason="why", memory=True, now=plane.clock.now(),
        lease=plane.lease, begins=(OperationId(new_id()), kind),
    )  # fmt: skip


async def under_lock(plane: Plane, project: ProjectId, sandbox: SandboxId, kind: OperationKind) -> Wished | None:
    """Return what the locked way came to; None where it refused."""
    try:
        async with plane.db.transaction(synced=False) as tx:
            row = await lifecycle.locked(tx, project, sandbox)
            return await lifecycle.wish(plane, tx, row, kind, reason="why")
    except SpaceError:
        return None


async def written(db: Database, sandbox: SandboxId) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Return a row and its operations, without what is the row's own."""
    row = await db.fetchrow("SELECT * FROM sandboxes WHERE id = $1", sandbox)
    assert row is not None
    begun = await db.fetch("SELECT * FROM operations WHERE sandbox_id = $1 ORDER BY created_at", sandbox)
    left_out = (*_OWN, "sandbox_id")
    return (
        {name: value for name, value in row.items() if name not in _OWN},
        [{name: value for name, value in one.items() if name not in left_out} for one in begun],
    )


async def as_it_is(db: Database, sandbox: SandboxId) -> None:
    pass


async def lags(db: Database, sandbox: SandboxId) -> None:
    await wishes.raise_generation(db, sandbox)


async def is_held(db: Database, sandbox: SandboxId) -> None:
    await db.execute(
        "UPDATE sandboxes SET lease_owner = 'another', lease_until = now() + interval '60 s' WHERE id = $1", sandbox
    )


async def timed_out(db: Database, sandbox: SandboxId) -> None:
    """The timeout put it away, and is spent."""
    await db.execute("UPDATE sandboxes SET desired_reason = 'timeout', expires_at = NULL WHERE id = $1", sandbox)


async def is_to_be_deleted(db: Database, sandbox: SandboxId) -> None:
    """Even where its status answers that."""
    await db.execute("UPDATE sandboxes SET desired = 'deleted' WHERE id = $1", sandbox)


CASES: dict[Callable[[Database, SandboxId], Awaitable[None]], bool] = {
    as_it_is: True,
    timed_out: True,
    lags: False,
    is_held: False,
    is_to_be_deleted: False,
}
"""What may be with a row, and whether a call can be plain then."""


@pytest.mark.parametrize("kind", KINDS)
async def test_the_one_statement_writes_what_the_locked_way_writes_or_nothing(api: Api, kind: OperationKind) -> None:
    db = api.plane.db
    for state in State:
        for case, may_be in CASES.items():
            one, other = [
                await insert_sandbox(db, api.project, state=state, worker="w1", deadlines=Deadlines(timeout_s=600))
                for _ in range(2)
            ]
            at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
            await db.execute("UPDATE sandboxes SET last_active_at = $1, idle_at = $1, expires_at = $1", at)
            for row in (one, other):
                await case(db, row.id)
            before = await written(db, one.id)
            wished = await plainly(api.plane, api.project, one.id, kind)
            locked = await under_lock(api.plane, api.project, other.id, kind)
            if wished is None:
                assert await written(db, one.id) == before, "it is left to the locked way"
            else:
                assert locked is not None
                assert locked.held
                assert [_without_id(found) for found in (await written(db, one.id))[1]] == [
                    _without_id(found) for found in (await written(db, other.id))[1]
                ]
                assert (await written(db, one.id))[0] == (await written(db, other.id))[0]
            assert (wished is not None) == (may_be and state in PLAIN[kind]), (state, case.__name__)


def _without_id(operation: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in operation.items() if name not in ("id", "created_at")}


async def test_what_is_plain_is_refused_by_nothing_and_joins_nothing(api: Api) -> None:
    """From every settled row with a free lease that gets a new wish, the one statement is taken: nothing is missed."""
    for kind in KINDS:
        for state in (State.RUNNING, State.PAUSED, State.SUSPENDED, State.FAILED, State.DELETED):
            row = await insert_sandbox(api.plane.db, api.project, state=state, worker="w1")
            desired = Desired(state) if state in (State.PAUSED, State.SUSPENDED) else row.spec.desired
            await api.plane.db.execute("UPDATE sandboxes SET desired = $2 WHERE id = $1", row.id, desired)
            wished = await under_lock(api.plane, api.project, row.id, kind)
            new = wished is not None and wished.row.generation > row.generation
            assert new == (state in PLAIN[kind]), (kind, state)


async def test_another_project_and_an_unknown_id_find_nothing(api: Api, running: Sandbox) -> None:
    assert await plainly(api.plane, ProjectId("another"), running.id, OperationKind.PAUSE) is None
    assert await plainly(api.plane, api.project, SandboxId("0" * 20), OperationKind.PAUSE) is None
    assert (await api.http.post(f"/v1/sandboxes/{'0' * 20}/pause")).status_code == 404


async def test_only_what_is_waited_for_is_not_synced(api: Api, running: Sandbox) -> None:
    """What comes of it is, and takes it along."""
    db = api.plane.db
    async with db.transaction() as tx:
        wished = await plainly(api.plane, api.project, running.id, OperationKind.PAUSE, tx)
        setting = await tx.fetchrow("SELECT current_setting('synchronous_commit') AS now")
    async with db.transaction() as tx:
        assert wished is not None
        await sandboxes.move(tx, wished, Event.PAUSED)
        later = await tx.fetchrow("SELECT current_setting('synchronous_commit') AS now")
    assert setting is not None
    assert later is not None
    assert (setting["now"], later["now"]) == ("off", "on")


async def test_two_at_once_are_one_order(api: Api, running: Sandbox, worker: Told) -> None:
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(api.http.post(f"/v1/sandboxes/{running.id}/pause")) for _ in range(5)]
    assert [(call.result().status_code, call.result().json()["state"]) for call in asked] == [(200, "paused")] * 5
    assert [target for method, target, _ in worker.calls if method == "POST"] == [f"/v1/sandboxes/{running.id}/pause"]
    found = await api.plane.db.fetch("SELECT kind, status FROM operations")
    assert [tuple(row) for row in found] == [("pause", "succeeded")]


async def _is_deleted(api: Api, tx: Queries, row: Sandbox) -> None:
    await wishes.ask_delete(tx, row.id)


async def _is_idle(api: Api, tx: Queries, row: Sandbox) -> None:
    assert await deadlines.suspend_idle(tx, row, "idle")


async def _times_out(api: Api, tx: Queries, row: Sandbox) -> None:
    assert row.expires_at is not None
    assert await deadlines.expire(tx, row.expires_at, 10) == [row.id]


async def _is_snapshot(api: Api, tx: Queries, row: Sandbox) -> None:
    await operations.insert(tx, await wishes.raise_generation(tx, row.id), OperationKind.SNAPSHOT)


async def _is_paused(api: Api, tx: Queries, row: Sandbox) -> None:
    await lifecycle.wish(api.plane, tx, await lifecycle.locked(tx, row.project, row.id), OperationKind.PAUSE)


async def _fails(api: Api, tx: Queries, row: Sandbox) -> None:
    await sandboxes.move(tx, row, Event.FAILED, reason="gone")


@pytest.mark.parametrize("rival", [_is_deleted, _is_idle, _times_out, _is_snapshot, _is_paused, _fails])
async def test_what_is_written_first_is_seen(
    api: Api, rival: Callable[[Api, Queries, Sandbox], Awaitable[None]]
) -> None:
    """The one statement waits for the row while the rival writes it, and then finds it plain no more."""
    db = api.plane.db
    row = await insert_sandbox(db, api.project, state=State.RUNNING, worker="w1", deadlines=Deadlines(timeout_s=600))
    async with asyncio.TaskGroup() as group, db.transaction() as tx:
        await rival(api, tx, row)
        after = await sandboxes.get(tx, row.id)
        asking = group.create_task(plainly(api.plane, api.project, row.id, OperationKind.PAUSE))
        await _blocked(db)
    assert asking.result() is None
    assert await sandboxes.get(db, row.id) == after


async def test_a_use_that_is_written_first_leaves_it_plain(api: Api, running: Sandbox) -> None:
    db = api.plane.db
    async with asyncio.TaskGroup() as group, db.transaction() as tx:
        await deadlines.touch(tx, {running.id: running.last_active_at + datetime.timedelta(seconds=1)})
        asking = group.create_task(plainly(api.plane, api.project, running.id, OperationKind.PAUSE))
        await _blocked(db)
    wished = asking.result()
    assert wished is not None
    assert (wished.generation, wished.epoch) == (running.generation + 1, running.epoch + 1)


async def _blocked(db: Database) -> None:
    """Wait until some statement waits for a lock."""
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with asyncio.timeout(30):
        while await db.fetchrow(waits) is None:
            await asyncio.sleep(0.02)
