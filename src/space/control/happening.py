"""Lets an event happen to a row, with all that follows: the record, and the calls that it ends."""

from collections.abc import Mapping

from space.control.plane import Plane
from space.model.convergence import REFUSES, SATISFIES
from space.model.errors import Conflict, SandboxFailed, SpaceError
from space.model.lifecycle import Event, State, advance
from space.model.operation import WISHES
from space.model.sandbox import Desired, Sandbox
from space.store import sandboxes
from space.store.db import Queries
from space.store.operations import Ending


async def happen(
    plane: Plane,
    db: Queries,
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
    It is one statement, and needs no transaction unless other things are to happen with it.
    """
    satisfied = SATISFIES.get(advance(sandbox.state, event), frozenset())
    refused = REFUSES.get(event, frozenset()) - satisfied
    return await sandboxes.move(
        db,
        sandbox,
        event,
        reason=reason,
        timings_ms=timings_ms,
        now=plane.clock.now(),
        withdrawn_to=withdrawn_to,
        ending=Ending(satisfied, refused, error or _error(sandbox, event, reason)),
    )


async def answer(
    db: Queries, sandbox: Sandbox, *, error: SpaceError | None = None, withdrawn_to: Desired | None = None
) -> Sandbox:
    """Let the status, as it is, answer the wish. With an error the wish has been refused and is withdrawn."""
    if error is not None:
        ending = Ending(refused=WISHES, error=error)
    elif sandbox.state is State.FAILED:
        ending = Ending(refused=REFUSES[Event.FAILED], error=_error(sandbox, Event.FAILED, sandbox.reason))
    else:
        ending = Ending(satisfied=SATISFIES.get(sandbox.state, ()))
    return await sandboxes.answer(db, sandbox, reason=sandbox.reason, withdrawn_to=withdrawn_to, ending=ending)


def _error(sandbox: Sandbox, event: Event, reason: str | None) -> SpaceError:
    if event is Event.FAILED:
        return SandboxFailed(f"Sandbox {sandbox.id} has failed: {reason or 'no reason is known.'} Delete it.")
    return Conflict(f"Sandbox {sandbox.id} was deleted meanwhile.")
