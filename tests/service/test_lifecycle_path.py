"""The way of a verb from the call to its worker and back: one lease, one order, one statement that settles it."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support import control_plane, worker_socket
from tests.support.control_plane import Api
from tests.support.rows import insert_sandbox, insert_template
from tests.support.worker_socket import Told

from space.control import waiting
from space.control.lifecycle import fulfilled, locked, wish
from space.control.snapshot_orders import take_asked
from space.controllers.watch import expected
from space.model.errors import NoCapacity, Unavailable
from space.model.ids import ProjectId, SandboxId, WorkerId
from space.model.lifecycle import Event, State
from space.model.operation import OperationKind, OperationStatus
from space.model.sandbox import Desired, Sandbox
from space.store import operations, projects, sandboxes, wishes
from space.store.db import Database
from space.store.operations import Ending
from space.store.sandboxes import Lease
from space.wire.worker import SandboxFact

KINDS = (OperationKind.PAUSE, OperationKind.RESUME, OperationKind.SUSPEND, OperationKind.CREATE)


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Told]:
    async with worker_socket.listening(tmp_path / "worker.sock") as found:
        yield found


@pytest.fixture
async def api(db: Database, tmp_path: Path, worker: Told) -> AsyncIterator[Api]:
    """The api, with a worker that it has met."""
    async with control_plane.api_over(db, tmp_path / "worker.sock") as made:
        made.plane.workers.links[0].id = WorkerId("w1")
        await insert_template(db, made.project)
        yield made


@pytest.fixture
async def running(api: Api) -> Sandbox:
    return await insert_sandbox(api.plane.db, api.project, state=State.RUNNING, worker="w1")


async def lease_of(api: Api, sandbox: SandboxId) -> str | None:
    row = await api.plane.db.fetchrow("SELECT lease_owner FROM sandboxes WHERE id = $1", sandbox)
    assert row is not None
    owner: str | None = row["lease_owner"]
    return owner


async def test_each_verb_is_one_order_under_one_lease(api: Api, running: Sandbox, worker: Told) -> None:
    url = f"/v1/sandboxes/{running.id}"
    for verb, shown in (("pause", "paused"), ("resume", "running"), ("pause", "paused")):
        answer = await api.http.post(f"{url}/{verb}")
        assert (answer.status_code, answer.json()["state"]) == (200, shown)
        row = await sandboxes.get(api.plane.db, running.id)
        assert row is not None
        assert (str(row.state), row.settled) == (shown, True)
        assert await lease_of(api, running.id) is None
    told = [(target.rsplit("/", 1)[1], body["epoch"]) for method, target, body in worker.calls if method == "POST"]
    assert told == [("pause", 2), ("resume", 3), ("pause", 4)], "each with an epoch of its own, and nothing twice"
    events = (await api.http.get(f"{url}/events")).json()["events"]
    assert [event["type"] for event in events] == ["created", "started", "paused", "resumed", "paused"]
    ended = await api.plane.db.fetch("SELECT kind, status FROM operations ORDER BY created_at")
    assert [tuple(row) for row in ended] == [("pause", "succeeded"), ("resume", "succeeded"), ("pause", "succeeded")]
    assert api.plane.held == {}


async def test_a_row_that_somebody_else_holds_is_left_to_him(api: Api, running: Sandbox, worker: Told) -> None:
    await wishes.raise_generation(api.plane.db, running.id)
    theirs = await sandboxes.acquire(api.plane.db, running.id, Lease("another process", 60))
    assert theirs is not None
    async with api.plane.db.transaction() as tx:
        row = await locked(tx, api.project, running.id)
        wished = await wish(api.plane, tx, row, OperationKind.PAUSE)
    assert not wished.held
    with pytest.raises(Unavailable, match="is recorded"):
        await fulfilled(api.plane, wished, within_s=0.05)
    assert worker.calls == []
    assert await lease_of(api, running.id) == "another process"


async def test_a_wish_that_is_not_waited_for_takes_no_lease(api: Api, running: Sandbox, worker: Told) -> None:
    assert (await api.http.post(f"/v1/sandboxes/{running.id}/pause?wait=0")).status_code == 202
    assert await lease_of(api, running.id) is None
    assert await sandboxes.lagging(api.plane.db, 10) == [running.id]
    assert worker.calls == []


async def test_a_worker_that_is_away_leaves_the_row_to_be_taken_up(
    api: Api, running: Sandbox, worker: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WAIT_UNAVAILABLE_S", 0.05)
    worker.refuse = True
    assert (await api.http.post(f"/v1/sandboxes/{running.id}/pause")).status_code == 503
    assert await lease_of(api, running.id) is None
    assert await sandboxes.lagging(api.plane.db, 10) == [running.id]
    worker.refuse = False
    answer = await api.http.post(f"/v1/sandboxes/{running.id}/pause")
    assert (answer.status_code, answer.json()["state"]) == (200, "paused")


async def test_what_a_change_of_state_ends(db: Database) -> None:
    project = await projects.ensure(db, "p")
    await insert_template(db, project)
    read = await insert_sandbox(db, project, state=State.RUNNING)

    async def begun(row: Sandbox) -> None:
        for kind in KINDS:
            await operations.insert(db, row, kind)

    async def found(project: ProjectId) -> list[tuple[str, int, str, str | None]]:
        rows = await db.fetch(
            "SELECT kind, generation, status, error_code FROM operations WHERE project_id = $1", project
        )
        return sorted(tuple(row) for row in rows)

    await begun(read)
    later = await wishes.wish(db, read.id, Desired.SUSPENDED)
    await begun(later)
    ending = Ending({OperationKind.PAUSE}, {OperationKind.SUSPEND}, NoCapacity("No room."))
    moved = await sandboxes.move(db, read, Event.PAUSED, ending=ending)
    assert not moved.settled
    assert await found(project) == [
        ("create", 1, "running", None), ("create", 2, "running", None),
        ("pause", 1, "succeeded", None), ("pause", 2, "succeeded", None),
        ("resume", 1, "running", None), ("resume", 2, "running", None),
        ("suspend", 1, "failed", "no_capacity"), ("suspend", 2, "running", None),
    ], "a later wish has not been tried yet, and is not what has overtaken anything"  # fmt: skip
    answered = await sandboxes.answer(db, moved, reason=None, ending=Ending(refused={OperationKind.CREATE}))
    assert answered.settled
    assert [(kind, status, code) for kind, generation, status, code in await found(project) if generation == 2] == [
        ("create", "failed", None), ("pause", "succeeded", None),
        ("resume", "failed", "overtaken"), ("suspend", "failed", "overtaken"),
    ]  # fmt: skip
    row = await db.fetchrow("SELECT error_detail FROM operations WHERE kind = 'suspend' AND generation = 2")
    assert row is not None
    assert row["error_detail"] == f"A later call has overtaken this one; sandbox {read.id} is paused."


async def test_a_change_that_comes_too_late_ends_nothing(db: Database) -> None:
    project = await projects.ensure(db, "p")
    await insert_template(db, project)
    read = await insert_sandbox(db, project, state=State.RUNNING)
    operation = await operations.insert(db, read, OperationKind.CREATE)
    assert operation is not None
    await sandboxes.move(db, read, Event.FAILED)
    with pytest.raises(Exception, match="changed meanwhile"):
        await sandboxes.move(db, read, Event.PAUSED, ending=Ending({OperationKind.CREATE}))
    found = await operations.get(db, project, operation.id)
    assert found is not None
    assert found.status is OperationStatus.RUNNING


async def test_a_snapshot_that_was_asked_comes_before_the_pause_that_was_asked_after_it(
    api: Api, running: Sandbox
) -> None:
    """Only where a row's one unanswered wish is for another state can nothing have been asked."""

    async def looked_for(row: Sandbox) -> bool:
        try:
            await take_asked(api.plane, row)
        except Exception:  # noqa: BLE001 - the worker of these tests takes none: it was asked to
            return True
        return False

    async with api.plane.db.transaction() as tx:
        row = await wishes.raise_generation(tx, running.id)
        await operations.insert(tx, row, OperationKind.SNAPSHOT, arguments={"memory": True})
    assert await looked_for(row)
    paused = await wishes.wish(api.plane.db, running.id, Desired.PAUSED)
    assert await looked_for(paused)
    full = dataclasses.replace(row, state=State.PAUSED, reason="disk_full")
    assert await looked_for(full), "its worker paused it, and the one wish is the snapshot"


async def test_a_snapshot_that_is_asked_as_a_suspension_begins_is_taken_after_it(api: Api, running: Sandbox) -> None:
    """The row that says that it has begun has the snapshot's generation, and nobody has looked for the snapshot."""
    db = api.plane.db
    async with db.transaction() as tx:
        held = await wishes.wish(tx, running.id, Desired.SUSPENDED)
    async with db.transaction() as tx:
        row = await wishes.raise_generation(tx, running.id)
        operation = await operations.insert(tx, row, OperationKind.SNAPSHOT, arguments={"memory": True})
    assert operation is not None
    begun = await sandboxes.move(db, held, Event.SUSPEND_BEGUN)
    assert begun.generation == row.generation
    moved = await sandboxes.move(db, begun, Event.SUSPENDED)
    assert (moved.state, moved.settled) == (State.SUSPENDED, False)
    assert not (await sandboxes.answer(db, moved, reason=None)).settled, "it is still to be taken"
    await operations.finish(db, operation.id, "digest")
    assert (await sandboxes.answer(db, moved, reason=None)).settled


async def test_a_suspension_is_durable_by_its_own_right(api: Api, running: Sandbox) -> None:
    """The answer to the second had the time at which the first had become so."""
    db = api.plane.db
    for generation in (1, 2):
        begun = await sandboxes.move(db, running, Event.SUSPEND_BEGUN)
        assert begun.durable_at is None
        suspended = await sandboxes.move(db, begun, Event.SUSPENDED)
        assert suspended.durable_at is None
        await sandboxes.mark_durable(db, running.id, generation)
        restoring = await sandboxes.move(db, suspended, Event.RESTORE_BEGUN)
        assert restoring.durable_at is not None
        running = await sandboxes.move(db, restoring, Event.RESTORED)


async def test_a_failure_leaves_no_snapshot_to_be_taken(api: Api, running: Sandbox) -> None:
    db = api.plane.db
    async with db.transaction() as tx:
        row = await wishes.raise_generation(tx, running.id)
        await operations.insert(tx, row, OperationKind.SNAPSHOT, arguments={"memory": True})
    assert (await sandboxes.move(db, row, Event.FAILED, ending=Ending(refused={OperationKind.SNAPSHOT}))).settled


def test_news_about_what_this_process_is_doing_is_no_news(api: Api, running: Sandbox) -> None:
    fact = SandboxFact(id=running.id, state="paused", epoch=2)
    assert not expected(api.plane, fact)
    api.plane.held[running.id] = 2
    assert expected(api.plane, fact)
    assert not expected(api.plane, fact.model_copy(update={"state": "failed"}))
    assert not expected(api.plane, fact.model_copy(update={"state": "suspended", "durable": True}))
    api.plane.held.clear()
