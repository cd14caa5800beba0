"""Use cases on how long a sandbox has left, and having it run for at least that long.

`timeout_s` of its deadlines is how long it is given each time it begins to run; what is set here is the present time
only. It needs `timeout_restarts`, which says that time asleep does not count.
"""

import dataclasses
import datetime

from space.control import lifecycle
from space.control.lifecycle import Changes, Wished
from space.control.plane import Plane
from space.model.errors import Conflict, NotFound
from space.model.ids import ProjectId, SandboxId
from space.model.lifecycle import State
from space.model.operation import OperationKind
from space.model.sandbox import Deadlines, Desired, Sandbox, check_deadlines
from space.store import wishes
from space.store.db import Queries
from space.store.wishes import Change


def awake(row: Sandbox) -> bool:
    """Tell whether a sandbox runs, and nobody is about to put it to sleep."""
    return row.state is State.RUNNING and row.spec.desired not in (Desired.PAUSED, Desired.SUSPENDED)


async def set_left(plane: Plane, project: ProjectId, sandbox: SandboxId, left_s: int) -> Sandbox:
    """Let the timeout of one that runs happen in `left_s` seconds, 0 for now. Raises NotFound where it is asleep."""
    check_deadlines(Deadlines(timeout_s=left_s))
    async with plane.db.transaction() as tx:
        return await _write(plane, tx, await _awake(tx, project, sandbox), left_s)


async def extend(plane: Plane, project: ProjectId, sandbox: SandboxId, left_s: int) -> Sandbox:
    """Give one that runs `left_s` seconds if it has fewer. Raises NotFound where it is asleep."""
    check_deadlines(Deadlines(timeout_s=left_s))
    async with plane.db.transaction() as tx:
        return await _lengthen(plane, tx, await _awake(tx, project, sandbox), left_s)


async def connect(
    plane: Plane, project: ProjectId, sandbox: SandboxId, left_s: int, *, memory: bool = True
) -> tuple[Sandbox, bool]:
    """Have a sandbox run, with at least `left_s` seconds left; returns it, and whether it did not run before.

    One that is resumed has exactly `left_s`, now and each time it runs again. `memory` False boots it from its disk.
    Raises as `lifecycle.ask` does.
    """
    check_deadlines(Deadlines(timeout_s=left_s))
    if not memory:
        await _forget_memory(plane, project, sandbox)
    async with plane.db.transaction(synced=False) as tx:
        row = await lifecycle.locked(tx, project, sandbox)
        if awake(row):
            return await _lengthen(plane, tx, row, left_s), False
        wished = await _wish_running(plane, tx, row, Changes(timeout_s=left_s))
    return await lifecycle.fulfilled(plane, wished), True


async def resume(
    plane: Plane, project: ProjectId, sandbox: SandboxId, left_s: int, changes: Changes, *, memory: bool = True
) -> Sandbox:
    """Resume a sandbox for `left_s` seconds, with these changes of its deadlines; raises Conflict where it runs."""
    check_deadlines(Deadlines(timeout_s=left_s))
    if not memory:
        await _forget_memory(plane, project, sandbox)
    async with plane.db.transaction(synced=False) as tx:
        row = await lifecycle.locked(tx, project, sandbox)
        if awake(row):
            raise Conflict(f"Sandbox {sandbox} is running already.", code="sandbox_running")
        wished = await _wish_running(plane, tx, row, dataclasses.replace(changes, timeout_s=left_s))
    return await lifecycle.fulfilled(plane, wished)


async def _awake(tx: Queries, project: ProjectId, sandbox: SandboxId) -> Sandbox:
    row = await lifecycle.locked(tx, project, sandbox)
    if not awake(row):
        raise NotFound(f"Sandbox {sandbox} is {row.state}, not running; resume it first.")
    return row


async def _wish_running(plane: Plane, tx: Queries, row: Sandbox, changes: Changes) -> Wished:
    if row.state is State.CREATING:
        raise Conflict(f"Sandbox {row.id} is still starting.", code="sandbox_starting", retry_after_s=1)
    change = Change(None, lifecycle.changed(row.spec.deadlines, changes), rearmed=True)
    changed = await wishes.change(tx, row.id, change, plane.clock.now())
    assert changed is not None, "the row is locked, and nobody wishes it deleted"
    return await lifecycle.wish(plane, tx, changed, OperationKind.RESUME)


async def _forget_memory(plane: Plane, project: ProjectId, sandbox: SandboxId) -> None:
    """Turn a suspension with memory into one of the disk alone.

    It has to run for that: its memory holds what it has not written to its disk yet.
    """
    async with plane.db.transaction() as tx:
        row = await lifecycle.locked(tx, project, sandbox)
    if not awake(row) and (row.state is State.PAUSED or row.spec.suspend_memory):
        await lifecycle.ask(plane, project, sandbox, OperationKind.RESUME, wait=True)
        await lifecycle.ask(plane, project, sandbox, OperationKind.SUSPEND, memory=False, wait=True)


async def _lengthen(plane: Plane, tx: Queries, row: Sandbox, left_s: int) -> Sandbox:
    wanted = plane.clock.now() + datetime.timedelta(seconds=left_s)
    if row.expires_at is None or row.expires_at >= wanted:
        return row
    return await _write(plane, tx, row, left_s)


async def _write(plane: Plane, tx: Queries, row: Sandbox, left_s: int) -> Sandbox:
    change = Change(None, row.spec.deadlines, rearmed=True, term_s=left_s)
    written = await wishes.change(tx, row.id, change, plane.clock.now())
    assert written is not None, "the row is locked, and nobody wishes it deleted"
    return written
