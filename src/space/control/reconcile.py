"""Moves a sandbox's status towards its wish. The one place that makes a worker do something to a sandbox.

    model/convergence.py says what is due; control/steps.py does it; here it is done under a lease until nothing is due.

`reconcile` needs only an id, reads the row, acts, and can be run again at any moment by anyone: by the request that
wrote the wish, and by the controller for every row whose status lags. The lease on the row keeps two from doing it at
once, its epoch fences the late writes of one that lost it, here and at the worker. A wish that is written meanwhile is
seen with the next move of the row, and done next; only a delete overtakes what is under way.
"""

from space.control import snapshot_orders, steps
from space.control.happening import answer
from space.control.plane import Plane
from space.model.convergence import due
from space.model.errors import SpaceError, Stale
from space.model.ids import SandboxId
from space.model.operation import OperationKind
from space.model.sandbox import Sandbox
from space.store import operations, sandboxes
from space.store.operations import Ending
from space.telemetry import logger

CREATE_DEADLINE_S = 120
"""A create that no worker has answered for this long is given up."""

_CREATES = (OperationKind.CREATE, OperationKind.FORK)


async def reconcile(plane: Plane, sandbox: SandboxId, held: Sandbox | None = None) -> Sandbox | SpaceError | None:
    """Do what is due for one sandbox; `held` is its row where this process has taken its lease already.

    Returns the row once nothing is due, None where there was nothing to do or somebody else does it, or why it must be
    tried again (the worker does not answer); the controller will.
    """
    while held is not None or (held := await sandboxes.acquire(plane.db, sandbox, plane.lease)) is not None:
        came = await converge(plane, held)
        if came is not None:
            return came
        held = None
    return None


async def converge(plane: Plane, sandbox: Sandbox) -> Sandbox | SpaceError | None:
    """Do what is due for a sandbox whose lease this process holds, and give the lease back.

    Returns the row once nothing is due, None where somebody else has taken it over, or why it must be tried again.
    """
    plane.held[sandbox.id] = sandbox.epoch
    try:
        while True:
            await snapshot_orders.take_asked(plane, sandbox)
            step = due(sandbox.spec.desired, sandbox.state)
            if step is not None:
                sandbox = await steps.do(plane, sandbox, step)
            else:
                sandbox = await answer(plane.db, sandbox)
            if sandbox.settled:
                return sandbox
    except Stale:
        logger().info("sandbox_overtaken", sandbox=sandbox.id, epoch=sandbox.epoch)
        await sandboxes.release(plane.db, sandbox)
        return None
    except SpaceError as error:
        logger().warning("sandbox_lags", sandbox=sandbox.id, state=sandbox.state, error=str(error))
        await sandboxes.release(plane.db, sandbox)
        await abandon(plane, sandbox.id, error, min_age_s=CREATE_DEADLINE_S)
        return error
    finally:
        if plane.held.get(sandbox.id) == sandbox.epoch:
            del plane.held[sandbox.id]


async def abandon(plane: Plane, sandbox: SandboxId, error: SpaceError, *, min_age_s: float) -> bool:
    """Give up a create that nobody is working on and that is this old: it fails with `error`, and is to be deleted.

    False where somebody is working on it, or it is past being created.
    """
    async with plane.db.transaction() as tx:
        given_up = await sandboxes.abandon(tx, sandbox, str(error), min_age_s, Ending(refused=_CREATES, error=error))
        if given_up is None:
            return False
        await operations.free_key(tx, sandbox)
    logger().warning("sandbox_create_abandoned", sandbox=sandbox, error=str(error))
    return True
