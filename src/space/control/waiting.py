"""How a call waits for the operation that it began."""

import asyncio

from space.control.plane import Plane
from space.control.reconcile import reconcile
from space.model.errors import NotFound, SpaceError, Unavailable
from space.model.operation import Operation, OperationStatus
from space.model.sandbox import Sandbox
from space.store import operations, sandboxes
from space.store.notices import RECHECK_S, Channel

WAIT_S = 100
"""The longest a call waits for its operation: over the worker's own limit for a start, with its one retry."""

WAIT_UNAVAILABLE_S = 8
"""How long a call waits for a worker that does not answer: a restart of it takes about two."""


async def finished(plane: Plane, operation: Operation, timeout_s: float) -> Operation:
    """Wait until an operation has ended and return it; after `timeout_s` return it as it is."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    with plane.notices.changes(Channel.OPERATION, operation.id) as changed:
        while True:
            changed.clear()
            read = await operations.get(plane.db, operation.project, operation.id)
            if read is None:
                raise NotFound(f"Operation {operation.id} is gone.")
            left = deadline - asyncio.get_running_loop().time()
            if read.status is not OperationStatus.RUNNING or left <= 0:
                return read
            try:
                async with asyncio.timeout(min(left, RECHECK_S)):
                    await changed.wait()
            except TimeoutError:
                continue


async def carried_out(plane: Plane, operation: Operation, *, within_s: float = WAIT_S) -> Operation:
    """Have an operation done and return it when it has succeeded; raises as `succeeded` does."""
    came = await reconcile(plane, operation.sandbox)
    return await succeeded(plane, operation, came if isinstance(came, SpaceError) else None, within_s=within_s)


async def succeeded(
    plane: Plane, operation: Operation, lag: SpaceError | None, *, within_s: float = WAIT_S
) -> Operation:
    """Return an operation when it has succeeded; raises the error that it ended with.

    `lag` is why its sandbox could not be brought further just now. Raises Unavailable where it has not ended in time;
    it is recorded then, and goes on.
    """
    done = await finished(plane, operation, within_s if lag is None else min(within_s, WAIT_UNAVAILABLE_S))
    if done.status is OperationStatus.RUNNING:
        raise Unavailable(
            f"The {operation.kind} of {operation.sandbox} is recorded and will be done; "
            f"ask for it at /v1/operations/{operation.id}."
        ) from lag
    if done.error is not None:
        raise done.error
    return done


async def result(plane: Plane, operation: Operation) -> tuple[Sandbox, Operation]:
    """Return what an operation led to; raises the error that it ended with, or Unavailable where it has not ended."""
    if operation.status is OperationStatus.RUNNING:
        raise Unavailable(
            f"Operation {operation.id} is still running; ask for it at /v1/operations/{operation.id}.",
            code="still_running",
        )
    if operation.error is not None:
        raise operation.error
    sandbox = await sandboxes.get(plane.db, operation.sandbox)
    if sandbox is None:
        raise NotFound(f"Sandbox {operation.sandbox} was deleted.")
    return sandbox, operation
