"""Moves a sandbox's status towards its wish. The one place that makes a worker do something to a sandbox.

    desired running, creating        -> start it at its worker -> running, or failed
                                        the worker has no room -> nothing is left: deleted
    desired deleted, not yet deleted -> deleting -> delete it at its worker -> deleted

`reconcile` takes only an id, reads the row, acts, and can be run again at any moment by anyone: by the request that
wrote the wish, and by the controller for every row whose status lags. The lease on the row keeps two from doing it at
once, its epoch fences the late writes of one that lost it, here and at the worker.
"""

from space.control.plane import Plane
from space.model.errors import Conflict, InvalidArgument, NoCapacity, NotFound, SpaceError, Stale, StorageFull
from space.model.ids import SandboxId
from space.model.lifecycle import Event, State
from space.model.operation import OperationKind
from space.model.sandbox import Desired, Sandbox
from space.store import operations, sandboxes
from space.telemetry import logger
from space.wire.worker import StartSandbox

CREATE_DEADLINE_S = 120
"""A create that no worker has answered for this long is given up."""

_REFUSED = (NoCapacity, StorageFull, NotFound, InvalidArgument)
"""What a worker answers before it has made anything of a sandbox."""


async def reconcile(plane: Plane, sandbox: SandboxId) -> SpaceError | None:
    """Do what is due for one sandbox. Returns None when that is done or somebody else does it.

    Otherwise it returns why it must be tried again (the worker does not answer); the controller will.
    """
    held = await sandboxes.acquire(plane.db, sandbox, plane.lease)
    return None if held is None else await converge(plane, held)


async def converge(plane: Plane, sandbox: Sandbox) -> SpaceError | None:
    """Do what is due for a sandbox whose lease this process holds, and give the lease back. Returns as `reconcile`."""
    plane.held[sandbox.id] = sandbox.epoch
    try:
        if sandbox.spec.desired is Desired.DELETED or sandbox.state is State.DELETING:
            await _delete(plane, sandbox)
        elif sandbox.state is State.CREATING:
            await _start(plane, sandbox)
    except Stale:
        logger().info("sandbox_overtaken", sandbox=sandbox.id, epoch=sandbox.epoch)
        return None
    except SpaceError as error:
        logger().warning("sandbox_lags", sandbox=sandbox.id, state=sandbox.state, error=str(error))
        await sandboxes.release(plane.db, sandbox)
        await abandon(plane, sandbox.id, error, min_age_s=CREATE_DEADLINE_S)
        return error
    finally:
        if plane.held.get(sandbox.id) == sandbox.epoch:
            del plane.held[sandbox.id]
    return None


async def abandon(plane: Plane, sandbox: SandboxId, error: SpaceError, *, min_age_s: float) -> bool:
    """Give up a create that nobody is working on and that is this old: it fails with `error`, and is to be deleted.

    False where somebody is working on it, or it is past being created.
    """
    async with plane.db.transaction() as tx:
        if not await sandboxes.abandon(tx, sandbox, str(error), min_age_s):
            return False
        await operations.fail(tx, sandbox, OperationKind.CREATE, error)
        await operations.free_key(tx, sandbox)
    logger().warning("sandbox_create_abandoned", sandbox=sandbox, error=str(error))
    return True


async def _start(plane: Plane, sandbox: Sandbox) -> None:
    if sandbox.worker is None:
        sandbox = await sandboxes.place(plane.db, sandbox, plane.workers.place())
    assert sandbox.worker is not None
    wish = StartSandbox.model_validate(
        {
            "epoch": sandbox.epoch,
            "template": sandbox.spec.template,
            "vcpus": sandbox.spec.vcpus,
            "memory_mib": sandbox.spec.memory_mib,
            "env": dict(sandbox.spec.env),
            "agent_token": sandbox.spec.agent_token,
        }
    )
    try:
        fact = await plane.workers.client(sandbox.worker).start(sandbox.id, wish)
    except _REFUSED as error:
        await _finalise(plane, sandbox, error)
        return
    except SpaceError as error:
        if error.retryable:
            raise
        await _fail(plane, sandbox, error)
        return
    async with plane.db.transaction() as tx:
        await sandboxes.move(tx, sandbox, Event.STARTED, timings_ms=fact.timings_ms)
        await operations.succeed(tx, sandbox.id, OperationKind.CREATE)
    logger().info("sandbox_started", sandbox=sandbox.id, worker=sandbox.worker, timings_ms=fact.timings_ms)


async def _finalise(plane: Plane, sandbox: Sandbox, error: SpaceError) -> None:
    """End a create that came to nothing: no failed sandbox is left for the caller to clean up."""
    async with plane.db.transaction() as tx:
        deleting = await sandboxes.move(tx, sandbox, Event.DELETE_ASKED, reason=str(error))
        await sandboxes.move(tx, deleting, Event.DELETED, reason=str(error))
        await operations.fail(tx, sandbox.id, OperationKind.CREATE, error)
        await operations.free_key(tx, sandbox.id)
    logger().info("sandbox_refused", sandbox=sandbox.id, worker=sandbox.worker, error=str(error))


async def _fail(plane: Plane, sandbox: Sandbox, error: SpaceError) -> None:
    async with plane.db.transaction() as tx:
        await sandboxes.move(tx, sandbox, Event.FAILED, reason=str(error))
        await operations.fail(tx, sandbox.id, OperationKind.CREATE, error)
    logger().warning("sandbox_failed", sandbox=sandbox.id, worker=sandbox.worker, error=str(error))


async def _delete(plane: Plane, sandbox: Sandbox) -> None:
    if sandbox.state is not State.DELETING:
        async with plane.db.transaction() as tx:
            why = sandbox.reason if sandbox.state is State.CREATING else None  # an abandoned create has one
            sandbox = await sandboxes.move(tx, sandbox, Event.DELETE_ASKED, reason=why)
            overtaken = Conflict(f"Sandbox {sandbox.id} was deleted while it was starting.")
            await operations.fail(tx, sandbox.id, OperationKind.CREATE, overtaken)
    if sandbox.worker is not None:
        await plane.workers.client(sandbox.worker).delete(sandbox.id, sandbox.epoch)
    async with plane.db.transaction() as tx:
        await sandboxes.move(tx, sandbox, Event.DELETED, reason=sandbox.reason)
        await operations.succeed(tx, sandbox.id, OperationKind.DELETE)
    logger().info("sandbox_deleted", sandbox=sandbox.id, worker=sandbox.worker)
