"""Use cases between create and delete: pause, resume, suspend, restore, new deadlines, and waking on a request.

Each writes a wish and has it carried out. Asking for what is already so, or already wished, joins it: two resumes at
once restore once.
"""

import dataclasses
import enum
from collections.abc import Mapping

from space.control.plane import Plane
from space.control.waiting import carried_out
from space.model.errors import Conflict, NotFound, SandboxFailed, SpaceError
from space.model.ids import ProjectId, SandboxId
from space.model.lifecycle import State
from space.model.operation import Operation, OperationKind
from space.model.sandbox import Deadlines, Desired, OnTimeout, Sandbox, check_deadlines, check_labels
from space.store import operations, sandboxes, wishes
from space.store.db import Queries
from space.store.wishes import Change

WAKE_S = 25.0
"""How long a request waits for the sandbox that it wakes; below the edge's limit for a decision (proxy/edge.py)."""

WISHED: dict[OperationKind, Desired] = {
    OperationKind.PAUSE: Desired.PAUSED,
    OperationKind.RESUME: Desired.RUNNING,
    OperationKind.RESTORE: Desired.RUNNING,
    OperationKind.SUSPEND: Desired.SUSPENDED,
}


class Keep(enum.Enum):
    """Where None is a value: leave it as it is."""

    KEEP = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """Fields to change. None is a value for the durations (never); for the others it leaves them as they are."""

    labels: Mapping[str, str] | None = None
    idle_timeout_s: int | Keep | None = Keep.KEEP
    timeout_s: int | Keep | None = Keep.KEEP
    on_timeout: OnTimeout | None = None
    auto_resume: bool | None = None
    timeout_restarts: bool | None = None
    timeout_memory: bool | None = None


async def ask(
    plane: Plane, project: ProjectId, sandbox: SandboxId, kind: OperationKind, *, memory: bool = True, wait: bool
) -> tuple[Sandbox, Operation | None]:
    """Pause, resume, suspend or restore, and wait until it is so, unless `wait` is False.

    Returns the row, and the operation; no operation where it was so already. Raises NotFound, SandboxFailed, Conflict
    (a suspended one cannot be paused; overtaken by a later call), what the worker refused it with (NoCapacity and
    StorageFull leave it as it was), and Unavailable where the worker does not answer: it will be done then.
    """
    # who waits is told of nothing before what came of it is synced, and this with it
    async with plane.db.transaction(synced=not wait) as tx:
        row = await locked(tx, project, sandbox)
        row, operation = await wish(plane, tx, row, kind, memory=memory)
    if operation is None or not wait:
        return row, operation
    done = await carried_out(plane, operation)
    return await read(plane, sandbox), done


async def wish(
    plane: Plane, tx: Queries, row: Sandbox, kind: OperationKind, *, memory: bool = True, reason: str | None = None
) -> tuple[Sandbox, Operation | None]:
    """Write the wish for a row that is locked, and return it with the operation to wait for.

    No operation where it is so already; the one under way where it is wished already.
    """
    desired = WISHED[kind]
    same = row.spec.desired is desired and (desired is not Desired.SUSPENDED or row.spec.suspend_memory == memory)
    if str(row.state) == str(desired) and row.settled and row.spec.desired is desired:
        return row, None
    if same and not row.settled:
        under_way = await operations.running(tx, row.id, kind)
        return row, under_way or await operations.insert(tx, row, kind)
    if kind is OperationKind.PAUSE and row.state in (State.SUSPENDING, State.SUSPENDED):
        raise Conflict(f"Sandbox {row.id} is {row.state}; restore it first.", code="sandbox_suspended")
    row = await wishes.wish(tx, row.id, desired, reason=reason, memory=memory, now=plane.clock.now())
    return row, await operations.insert(tx, row, kind)


async def locked(tx: Queries, project: ProjectId, sandbox: SandboxId) -> Sandbox:
    """Return a sandbox that something can be asked of, its row locked; raises NotFound and SandboxFailed."""
    row = await sandboxes.lock(tx, project, sandbox)
    if row is None or row.state is State.DELETED or row.spec.desired is Desired.DELETED:
        raise NotFound(f"There is no sandbox {sandbox}; it may have been deleted.")
    if row.state is State.FAILED:
        raise SandboxFailed(f"Sandbox {sandbox} has failed: {row.reason} Delete it.")
    return row


async def change(plane: Plane, project: ProjectId, sandbox: SandboxId, changes: Changes) -> Sandbox:
    """Change labels and deadlines; a `timeout_s` that is given counts from now. Raises NotFound, InvalidArgument.

    Where a deadline fires at the same moment, the one that is written first holds: after a delete there is nothing to
    change, and after the change nothing fires.
    """
    if changes.labels is not None:
        check_labels(changes.labels)
    async with plane.db.transaction() as tx:
        row = await sandboxes.lock(tx, project, sandbox)
        if row is None or row.state is State.DELETED:
            raise NotFound(f"There is no sandbox {sandbox}; it may have been deleted.")
        deadlines = changed(row.spec.deadlines, changes)
        check_deadlines(deadlines)
        rearmed = changes.timeout_s is not Keep.KEEP
        written = await wishes.change(tx, sandbox, Change(changes.labels, deadlines, rearmed), plane.clock.now())
        if written is None:
            raise NotFound(f"There is no sandbox {sandbox}; it is being deleted.")
    return written


def changed(now: Deadlines, changes: Changes) -> Deadlines:
    """Return deadlines with these changes."""
    return Deadlines(
        idle_timeout_s=now.idle_timeout_s if changes.idle_timeout_s is Keep.KEEP else changes.idle_timeout_s,
        timeout_s=now.timeout_s if changes.timeout_s is Keep.KEEP else changes.timeout_s,
        on_timeout=now.on_timeout if changes.on_timeout is None else changes.on_timeout,
        auto_resume=now.auto_resume if changes.auto_resume is None else changes.auto_resume,
        timeout_restarts=now.timeout_restarts if changes.timeout_restarts is None else changes.timeout_restarts,
        timeout_memory=now.timeout_memory if changes.timeout_memory is None else changes.timeout_memory,
    )


def wakes(row: Sandbox) -> bool:
    """Tell whether a request to a sandbox wakes it: it sleeps, or is about to, and may be woken.

    One that its worker paused (a full disk) cannot be woken by a wish.
    """
    if not row.spec.deadlines.auto_resume:
        return False
    if row.state is State.PAUSED:
        return row.spec.desired is not Desired.RUNNING or not row.settled
    return row.state in (State.SUSPENDING, State.SUSPENDED, State.RESTORING)


async def wake(plane: Plane, row: Sandbox) -> Sandbox:
    """Have a sleeping sandbox running for a request that waits, and return its row; requests at once share it.

    Its timeout, idle timeout and what they do stay as they are. Raises what keeps it from running.
    """
    async with plane.db.transaction(synced=False) as tx:
        fresh = await locked(tx, row.project, row.id)
        _, operation = await wish(plane, tx, fresh, OperationKind.RESUME, memory=True, reason=sandboxes.WOKEN)
    if operation is not None:
        await carried_out(plane, operation, within_s=WAKE_S)
    return await read(plane, row.id)


async def read(plane: Plane, sandbox: SandboxId) -> Sandbox:
    """Return a row as it is now; raises NotFound."""
    found = await sandboxes.get(plane.db, sandbox)
    if found is None:
        raise NotFound(f"Sandbox {sandbox} was deleted.")
    return found


def why_unreachable(sandbox: Sandbox | None, project: ProjectId, ident: str) -> SpaceError | None:
    """Return why requests may not go to a sandbox's agent now; None where they may."""
    if sandbox is None or sandbox.project != project or sandbox.spec.desired is Desired.DELETED:
        return NotFound(f"There is no sandbox {ident}; it may have been deleted.")
    how = f"resume it first: POST /v1/sandboxes/{ident}/resume, or `space sandbox resume {ident}`"
    match sandbox.state:
        case State.RUNNING:
            return None
        case State.CREATING:
            return Conflict(f"Sandbox {ident} is still starting.", code="sandbox_starting", retry_after_s=1)
        case State.PAUSED:
            if sandbox.spec.desired is Desired.RUNNING and sandbox.settled:
                return Conflict(f"Sandbox {ident} is paused: {sandbox.reason}.", code="sandbox_paused")
            return Conflict(f"Sandbox {ident} is paused; {how}.", code="sandbox_paused")
        case State.SUSPENDING | State.SUSPENDED:
            return Conflict(f"Sandbox {ident} is {sandbox.state}; {how}.", code="sandbox_suspended")
        case State.RESTORING:
            return Conflict(f"Sandbox {ident} is being restored.", code="sandbox_restoring", retry_after_s=1)
        case State.FAILED:
            return SandboxFailed(f"Sandbox {ident} has failed: {sandbox.reason} Delete it.")
        case State.DELETING | State.DELETED:
            return NotFound(f"There is no sandbox {ident}; it may have been deleted.")
