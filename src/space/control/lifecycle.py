"""Use cases between create and delete: pause, resume, suspend, restore, new deadlines, and waking on a request.

Each writes a wish and has it carried out. Asking for what is already so, or already wished, joins it: two resumes at
once restore once.
"""

import dataclasses
import enum
from collections.abc import Mapping

from space.control.plane import Plane
from space.control.reconcile import reconcile
from space.control.waiting import WAIT_S, succeeded
from space.model.errors import Conflict, NotFound, SandboxFailed, SpaceError
from space.model.ids import OperationId, ProjectId, SandboxId, new_id
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


@dataclasses.dataclass(frozen=True, slots=True)
class Wished:
    """A wish: the row that has it, and the operation to wait for, None where it is so already.

    `held` tells that this process took the row's lease with it, to carry it out.
    """

    row: Sandbox
    operation: Operation | None = None
    held: bool = False

    def fulfilled_by(self, row: Sandbox) -> bool:
        """Tell whether the row has come to be what was wished: the event that led there has ended the operation."""
        return row.state is not self.row.state and str(row.state) == str(self.row.spec.desired)


async def ask(
    plane: Plane, project: ProjectId, sandbox: SandboxId, kind: OperationKind, *, memory: bool = True, wait: bool
) -> tuple[Sandbox, Operation | None]:
    """Pause, resume, suspend or restore, and wait until it is so, unless `wait` is False.

    Returns the row, and the operation; no operation where it was so already. Raises NotFound, SandboxFailed, Conflict
    (a suspended one cannot be paused; overtaken by a later call), what the worker refused it with (NoCapacity and
    StorageFull leave it as it was), and Unavailable where the worker does not answer: it will be done then.
    """
    if wait:
        wished = await wish_to_wait_for(plane, project, sandbox, kind, memory=memory)
        return await fulfilled(plane, wished), wished.operation
    async with plane.db.transaction() as tx:
        row = await locked(tx, project, sandbox)
        wished = await wish(plane, tx, row, kind, memory=memory, hold=False)
    return wished.row, wished.operation


async def wish_to_wait_for(
    plane: Plane,
    project: ProjectId,
    sandbox: SandboxId,
    kind: OperationKind,
    *,
    memory: bool = True,
    reason: str | None = None,
) -> Wished:
    """Write a wish that the caller is to have `fulfilled`: the plain case in one statement, any other under a lock.

    It is not synced: who waits is told of nothing before what came of it is, and this with it. Raises as `locked` and
    `wish` do.
    """
    ident = OperationId(new_id())
    plain = await wishes.wish_plain(
        plane.db, project, sandbox, WISHED[kind], reason=reason, memory=memory, now=plane.clock.now(),
        lease=plane.lease, begins=(ident, kind),
    )  # fmt: skip
    if plain is not None:
        return Wished(plain, operations.begun(ident, kind, plain), held=True)
    async with plane.db.transaction(synced=False) as tx:
        row = await locked(tx, project, sandbox)
        return await wish(plane, tx, row, kind, memory=memory, reason=reason)


async def wish(
    plane: Plane,
    tx: Queries,
    row: Sandbox,
    kind: OperationKind,
    *,
    memory: bool = True,
    reason: str | None = None,
    hold: bool = True,
) -> Wished:
    """Write the wish for a row that is locked; where it is wished already, join the operation under way.

    With `hold` the caller is to have it `fulfilled` once the transaction has ended.
    """
    desired = WISHED[kind]
    same = row.spec.desired is desired and (desired is not Desired.SUSPENDED or row.spec.suspend_memory == memory)
    if str(row.state) == str(desired) and row.settled and row.spec.desired is desired:
        return Wished(row)
    if same and not row.settled:
        return Wished(row, await operations.running(tx, row.id, kind) or await operations.insert(tx, row, kind))
    if kind is OperationKind.PAUSE and row.state in (State.SUSPENDING, State.SUSPENDED):
        raise Conflict(f"Sandbox {row.id} is {row.state}; restore it first.", code="sandbox_suspended")
    lease = plane.lease if hold else None
    ident = OperationId(new_id())
    wished = await wishes.wish(
        tx, row.id, desired, reason=reason, memory=memory, now=plane.clock.now(), lease=lease, begins=(ident, kind)
    )
    return Wished(wished, operations.begun(ident, kind, wished), held=wished.epoch > row.epoch)


async def fulfilled(plane: Plane, wished: Wished, *, within_s: float = WAIT_S) -> Sandbox:
    """Have a wish come true and return the row; raises what keeps it from that, as `waiting.succeeded` does."""
    if wished.operation is None:
        return wished.row
    came = await reconcile(plane, wished.row.id, wished.row if wished.held else None)
    if isinstance(came, Sandbox) and wished.fulfilled_by(came):
        return came
    await succeeded(plane, wished.operation, came if isinstance(came, SpaceError) else None, within_s=within_s)
    return await read(plane, wished.row.id)


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
    wished = await wish_to_wait_for(plane, row.project, row.id, OperationKind.RESUME, reason=sandboxes.WOKEN)
    return await fulfilled(plane, wished, within_s=WAKE_S)


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
