"""What can be done for a sandbox at its worker, one function for each step; each returns the row as it is afterwards.

Every call can be repeated, so a step that was cut off anywhere is done again from its beginning. A transition
(`suspending`, `restoring`) is written before the worker is called and left with what the worker says is true: with its
answer, or, after an error, with what it says when asked. That it has begun need not outlive a loss of power, which ends
every VM and so the transition; how it ended must. Unavailable leaves the row as it is: only the worker knows.
"""

from collections.abc import Awaitable, Callable, Sequence

from space.control import egress
from space.control.happening import answer, happen
from space.control.plane import Plane
from space.model.convergence import Step, outcome
from space.model.errors import (
    Conflict,
    InvalidArgument,
    NoCapacity,
    NotFound,
    SandboxFailed,
    SpaceError,
    Stale,
    StorageFull,
    Unavailable,
)
from space.model.ids import SandboxId
from space.model.lifecycle import Event, State
from space.model.sandbox import Desired, Sandbox
from space.store import operations, sandboxes
from space.telemetry import logger
from space.wire.agent import AgentVolume
from space.wire.worker import ForkChild, ForkResult, ForkSandbox, SandboxFact, StartSandbox, SuspendSandbox
from space.wire.worker_client import WorkerClient

TRANSITION_DEADLINE_S = 120
"""A worker that has answered Unavailable to a suspend or restore for this long is asked how things stand, and that is
the end of it."""

LOST = "Its microVM is gone, and no record says why; `space down` and a restart of the host end all of them."

_REFUSED = (NoCapacity, StorageFull, NotFound, InvalidArgument)
"""What a worker answers before it has made anything of a sandbox."""


async def do(plane: Plane, sandbox: Sandbox, step: Step) -> Sandbox:
    """Do one step under the caller's lease.

    Raises Stale where it is overtaken, Unavailable (and what else is worth it) where it is to be repeated.
    """
    return await _STEPS[step](plane, sandbox)


async def _start(plane: Plane, sandbox: Sandbox) -> Sandbox:
    if sandbox.spec.parent is not None:
        return await _start_fork(plane, sandbox, sandbox.spec.parent)
    if sandbox.worker is None:
        sandbox = await sandboxes.place(plane.db, sandbox, plane.workers.place())
    try:
        fact = await _client(plane, sandbox).start(sandbox.id, await _wish(plane, sandbox))
    except _REFUSED as error:
        return await finalise(plane, sandbox, error)
    except SpaceError as error:
        if error.retryable:
            raise
        return await _fail(plane, sandbox, str(error), error)
    return await started(plane, sandbox, fact)


async def started(plane: Plane, sandbox: Sandbox, fact: SandboxFact) -> Sandbox:
    """Record that it runs."""
    moved = await happen(plane, plane.db, sandbox, Event.STARTED, timings_ms=fact.timings_ms)
    logger().info("sandbox_started", sandbox=sandbox.id, worker=sandbox.worker, timings_ms=fact.timings_ms)
    return moved


async def finalise(plane: Plane, sandbox: Sandbox, error: SpaceError) -> Sandbox:
    """End a create that came to nothing: no failed sandbox is left for the caller to clean up."""
    async with plane.db.transaction() as tx:
        deleting = await happen(plane, tx, sandbox, Event.DELETE_ASKED, reason=str(error), error=error)
        gone = await happen(plane, tx, deleting, Event.DELETED, reason=str(error))
        await operations.free_key(tx, sandbox.id)
    logger().info("sandbox_refused", sandbox=sandbox.id, worker=sandbox.worker, error=str(error))
    return gone


async def _start_fork(plane: Plane, sandbox: Sandbox, parent: SandboxId) -> Sandbox:
    """Bring a fork to run that nobody is making any more: it may be there already; else it is made now."""
    there = await _truth(plane, sandbox)
    if there is not None and outcome(State.CREATING, State(there.state)) is Event.STARTED:
        return await started(plane, sandbox, there)
    if there is not None and there.state != "failed":
        raise Unavailable(f"Sandbox {sandbox.id} is still being made.")
    source = await sandboxes.get(plane.db, parent)
    if source is None or source.worker is None or there is not None:
        return await drop_fork(plane, sandbox, NotFound(f"Sandbox {parent}, of which it was to be a fork, is gone."))
    return (await fork(plane, source, [sandbox]))[0]


async def fork(plane: Plane, parent: Sandbox, children: Sequence[Sandbox]) -> list[Sandbox]:
    """Let the parent's worker make these copies in one go; each then runs, or nothing of it is left."""
    wish = ForkSandbox.model_validate(
        {
            "epoch": parent.epoch,
            "children": [
                ForkChild.model_validate(
                    {
                        "id": child.id,
                        "epoch": child.epoch,
                        "template_name": child.spec.template_name,
                        "env": dict(child.spec.env),
                        "agent_token": child.spec.agent_token,
                        "egress": (await egress.orders(plane, child.id)).egress,
                        "volumes": _volumes(child),
                    }
                )
                for child in children
            ],
        }
    )
    try:
        results = {result.id: result for result in await _client(plane, parent).fork(parent.id, wish)}
    except Unavailable:
        raise
    except SpaceError as error:
        # Stale too: it is the parent that was overtaken, and so that there is nothing to copy any more
        return [await drop_fork(plane, child, _of_parent(parent, error)) for child in children]
    return [await _forked(plane, child, results.get(child.id)) for child in children]


def _of_parent(parent: Sandbox, error: SpaceError) -> SpaceError:
    if isinstance(error, Stale):
        return Conflict(f"Sandbox {parent.id} changed while it was being forked. Try again.", retry_after_s=1)
    return error


async def _forked(plane: Plane, child: Sandbox, result: ForkResult | None) -> Sandbox:
    if result is not None and result.fact is not None:
        return await started(plane, child, result.fact)
    error = SpaceError("The worker did not say what became of it.") if result is None else result.error()
    return await finalise(plane, child, error)


async def drop_fork(plane: Plane, child: Sandbox, error: SpaceError) -> Sandbox:
    """End a fork that came to nothing, and whatever its worker may have of it."""
    await _client(plane, child).delete(child.id, child.epoch)
    return await finalise(plane, child, error)


async def _pause(plane: Plane, sandbox: Sandbox) -> Sandbox:
    error = await _told(plane, sandbox, State.PAUSED, _client(plane, sandbox).pause)
    if isinstance(error, SandboxFailed):
        return await _fail(plane, sandbox, str(error), None)
    if error is not None or sandbox.state is State.PAUSED:
        return await answer(plane.db, sandbox, error=error, withdrawn_to=None if error is None else Desired.RUNNING)
    return await happen(plane, plane.db, sandbox, Event.PAUSED)


async def _resume(plane: Plane, sandbox: Sandbox) -> Sandbox:
    error = await _told(plane, sandbox, State.RUNNING, _client(plane, sandbox).resume)
    if isinstance(error, SandboxFailed):
        return await _fail(plane, sandbox, str(error), None)
    if error is not None or sandbox.state is State.RUNNING:
        # one that its worker paused has a reason, and goes on by itself: that remains the wish
        refused = error is not None and sandbox.state is State.PAUSED and sandbox.reason is None
        return await answer(plane.db, sandbox, error=error, withdrawn_to=Desired.PAUSED if refused else None)
    return await happen(plane, plane.db, sandbox, Event.RESUMED, reason=_why(sandbox, Desired.RUNNING))


async def _told(
    plane: Plane, sandbox: Sandbox, wanted: State, call: Callable[[SandboxId, int], Awaitable[SandboxFact]]
) -> SpaceError | None:
    """Make a call and return why the sandbox is not in the wanted state then; SandboxFailed where there is no VM."""
    try:
        await call(sandbox.id, sandbox.epoch)
    except (Stale, Unavailable):
        raise
    except SpaceError as error:
        there = await _truth(plane, sandbox)
        if there is None or there.state == "failed":
            return SandboxFailed((there and there.reason) or LOST)
        return None if there.state == wanted else error
    return None


async def _suspend(plane: Plane, sandbox: Sandbox) -> Sandbox:
    why = _why(sandbox, Desired.SUSPENDED)
    if sandbox.state is not State.SUSPENDING:
        async with plane.db.transaction(synced=False) as tx:
            sandbox = await happen(plane, tx, sandbox, Event.SUSPEND_BEGUN, reason=why)

    async def call(client: WorkerClient) -> SandboxFact:
        wish = SuspendSandbox(epoch=sandbox.epoch, memory=sandbox.spec.suspend_memory)
        return await client.suspend(sandbox.id, wish)

    return await _transit(plane, sandbox, call, why)


async def _restore(plane: Plane, sandbox: Sandbox) -> Sandbox:
    why = _why(sandbox, Desired.RUNNING)
    if sandbox.state is not State.RESTORING:
        async with plane.db.transaction(synced=False) as tx:
            sandbox = await happen(plane, tx, sandbox, Event.RESTORE_BEGUN, reason=why)

    async def call(client: WorkerClient) -> SandboxFact:
        return await client.restore(sandbox.id, await _wish(plane, sandbox))

    return await _transit(plane, sandbox, call, why)


async def _transit(
    plane: Plane, sandbox: Sandbox, call: Callable[[WorkerClient], Awaitable[SandboxFact]], why: str | None
) -> Sandbox:
    """Make the call of a transition and leave the transition by what is true then."""
    error: SpaceError | None = None
    fact: SandboxFact | None
    try:
        fact = await call(_client(plane, sandbox))
    except Stale:
        raise
    except SpaceError as caught:
        if (
            isinstance(caught, Unavailable)
            and await sandboxes.unchanged_s(plane.db, sandbox.id) < TRANSITION_DEADLINE_S
        ):
            raise
        error, fact = caught, await _truth(plane, sandbox)
    event = outcome(sandbox.state, None if fact is None else State(fact.state))
    if event is None:
        raise error or Unavailable(f"The worker is not done with sandbox {sandbox.id}.")
    if event is Event.FAILED:
        return await _fail(plane, sandbox, (fact and fact.reason) or LOST, None)
    if event in (Event.SUSPEND_FAILED, Event.RESTORE_FAILED):
        error = error or Conflict(f"Its worker says that sandbox {sandbox.id} is {fact and fact.state}.")
        why = str(error)
    # one that a client had paused is so still; one that its worker paused has a reason, and the watch tells
    stands = event is Event.SUSPEND_FAILED and fact is not None and fact.state == "paused" and fact.reason is None
    async with plane.db.transaction() as tx:
        timings = fact.timings_ms if fact is not None and event is Event.RESTORED else None
        back_to = Desired.PAUSED if stands else None
        moved = await happen(
            plane, tx, sandbox, event, reason=why, error=error, timings_ms=timings, withdrawn_to=back_to
        )
        if stands and moved.settled:  # else what is wished by now is told to the worker again anyway
            moved = await happen(plane, tx, moved, Event.PAUSED)
        if fact is not None and fact.durable:
            await sandboxes.mark_durable(tx, sandbox.id, fact.generation)
    logger().info("sandbox_moved", sandbox=sandbox.id, state=moved.state, event_type=event, reason=why)
    return moved


async def _delete(plane: Plane, sandbox: Sandbox) -> Sandbox:
    if sandbox.state is not State.DELETING:
        # an abandoned create has its reason in the row
        why = sandbox.reason if sandbox.state is State.CREATING else sandbox.spec.desired_reason
        sandbox = await happen(plane, plane.db, sandbox, Event.DELETE_ASKED, reason=why)
    if sandbox.worker is not None:
        await _client(plane, sandbox).delete(sandbox.id, sandbox.epoch)
    gone = await happen(plane, plane.db, sandbox, Event.DELETED, reason=sandbox.reason)
    logger().info("sandbox_deleted", sandbox=sandbox.id, worker=sandbox.worker)
    return gone


async def _fail(plane: Plane, sandbox: Sandbox, reason: str, error: SpaceError | None) -> Sandbox:
    failed = await happen(plane, plane.db, sandbox, Event.FAILED, reason=reason, error=error)
    logger().warning("sandbox_failed", sandbox=sandbox.id, worker=sandbox.worker, error=reason)
    return failed


async def _truth(plane: Plane, sandbox: Sandbox) -> SandboxFact | None:
    """Return what the worker holds of it now; None for nothing."""
    held = {fact.id: fact for fact in await _client(plane, sandbox).sandboxes()}
    return held.get(sandbox.id)


def _client(plane: Plane, sandbox: Sandbox) -> WorkerClient:
    assert sandbox.worker is not None, "whatever has left `creating` has been placed"
    return plane.workers.client(sandbox.worker)


def _why(sandbox: Sandbox, desired: Desired) -> str | None:
    return sandbox.spec.desired_reason if sandbox.spec.desired is desired else None


async def _wish(plane: Plane, sandbox: Sandbox) -> StartSandbox:
    orders = await egress.orders(plane, sandbox.id)
    return StartSandbox.model_validate(
        {
            "epoch": sandbox.epoch,
            "template": sandbox.spec.template,
            "template_name": sandbox.spec.template_name,
            "vcpus": sandbox.spec.vcpus,
            "memory_mib": sandbox.spec.memory_mib,
            "env": dict(sandbox.spec.env),
            "agent_token": sandbox.spec.agent_token,
            "egress": orders.egress,
            "secrets": orders.secrets,
            "volumes": _volumes(sandbox),
        }
    )


def _volumes(sandbox: Sandbox) -> list[AgentVolume]:
    return [AgentVolume(volume=mount.volume, path=mount.path) for mount in sandbox.spec.volumes]


_STEPS: dict[Step, Callable[[Plane, Sandbox], Awaitable[Sandbox]]] = {
    Step.START: _start,
    Step.PAUSE: _pause,
    Step.RESUME: _resume,
    Step.SUSPEND: _suspend,
    Step.RESTORE: _restore,
    Step.DELETE: _delete,
}
