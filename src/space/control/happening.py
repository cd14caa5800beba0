"""Lets an event happen to a row, with all that follows: the record, and the calls that it ends."""

from collections.abc import Mapping

from space.control.plane import Plane
from space.model.convergence import REFUSES, SATISFIES
from space.model.errors import Conflict, SandboxFailed, SpaceError
from space.model.lifecycle import Event, State
from space.model.operation import WISHES
from space.model.sandbox import Desired, Sandbox
from space.store import operations, sandboxes
from space.store.db import Queries


async def happen(
    plane: Plane,
    tx: Queries,
    sandbox: Sandbox,
    event: Event,
    *,
    reason: str | None = None,
    error: SpaceError | None = None,
    timings_ms: Mapping[str, float] | None = None,
    withdrawn_to: Desired | None = None,
) -> Sandbox:
    """Move the row that was read as `sandbox` and return it; raises Stale where it has changed since.

    `error` is what refused callers get; without one it is made from the event. `withdrawn_to` as in `sandboxes.move`.
    """
    moved = await sandboxes.move(
        tx, sandbox, event, reason=reason, timings_ms=timings_ms, now=plane.clock.now(), withdrawn_to=withdrawn_to
    )
    satisfied = SATISFIES.get(moved.state, frozenset())
    refused = REFUSES.get(event, frozenset()) - satisfied
    if satisfied or refused:
        why = error or _error(sandbox, event, reason)
        await operations.settle(tx, sandbox, satisfied=satisfied, refused=refused, error=why)
    await _end_overtaken(tx, moved)
    return moved


async def answer(
    tx: Queries, sandbox: Sandbox, *, error: SpaceError | None = None, withdrawn_to: Desired | None = None
) -> Sandbox:
    """Let the status, as it is, answer the wish. With an error the wish has been refused and is withdrawn."""
    answered = await sandboxes.answer(tx, sandbox, reason=sandbox.reason, withdrawn_to=withdrawn_to)
    if error is not None:
        await operations.settle(tx, sandbox, satisfied=(), refused=WISHES, error=error)
    elif sandbox.state is State.FAILED:
        why = SandboxFailed(f"Sandbox {sandbox.id} has failed: {sandbox.reason} Delete it.")
        await operations.settle(tx, sandbox, satisfied=(), refused=REFUSES[Event.FAILED], error=why)
    else:
        await operations.settle(tx, sandbox, satisfied=SATISFIES.get(sandbox.state, ()))
    await _end_overtaken(tx, answered)
    return answered


async def _end_overtaken(tx: Queries, sandbox: Sandbox) -> None:
    """End the calls whose wish was replaced by a later one before it came true."""
    if sandbox.settled and sandbox.generation > 1:
        error = Conflict(
            f"A later call has overtaken this one; sandbox {sandbox.id} is {sandbox.state}.", code="overtaken"
        )
        await operations.settle(tx, sandbox, satisfied=(), refused=WISHES, error=error)


def _error(sandbox: Sandbox, event: Event, reason: str | None) -> SpaceError:
    if event is Event.FAILED:
        return SandboxFailed(f"Sandbox {sandbox.id} has failed: {reason or 'no reason is known.'} Delete it.")
    return Conflict(f"Sandbox {sandbox.id} was deleted meanwhile.")
