"""Use case: copies of a sandbox, each a sandbox of its own from its first instruction; the original goes on.

A child has the policy of the original without its credentials: those are given to it anew, or not at all. What it sends
goes by the same way, so an upstream proxy keeps its password.

The children's rows come first, leased by this process; then their worker makes all copies in one go, of one moment. A
child that nobody is making any more (a process died, or `wait` was False) is made on its own by whoever reconciles it.
"""

import asyncio
import dataclasses
import secrets
from collections.abc import Collection, Mapping, Sequence

from space.control import egress, lifecycle, steps, waiting
from space.control.lifecycle import Changes
from space.control.plane import Plane
from space.control.reconcile import abandon, reconcile
from space.model.egress import Document
from space.model.errors import Conflict, InvalidArgument, SpaceError, Stale, Unavailable
from space.model.ids import OperationId, ProjectId, SandboxId, new_id
from space.model.lifecycle import State
from space.model.operation import Operation, OperationKind, OperationStatus
from space.model.policy import secret_names
from space.model.policy_document import read, without_credentials
from space.model.sandbox import MAX_FORKS, Deadlines, Desired, Sandbox, SandboxSpec, check_deadlines, check_spec
from space.store import operations, policies, sandboxes
from space.store.db import Queries

_FROM = frozenset({State.RUNNING, State.PAUSED, State.SUSPENDED})


@dataclasses.dataclass(frozen=True, slots=True)
class ForkWish:
    """What a client asks for. What is None is as in the original; `env` is added to its environment.

    `policy` None is that of the original without its credentials.
    """

    count: int
    env: Mapping[str, str]
    labels: Mapping[str, str] | None
    changes: Changes
    policy: Document | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Child:
    """What became of one copy: it runs, it is being made (`wait` False), or `error` says why there is none."""

    operation: Operation
    sandbox: Sandbox | None = None
    error: SpaceError | None = None


async def fork(plane: Plane, project: ProjectId, sandbox: SandboxId, wish: ForkWish, *, wait: bool) -> list[Child]:
    """Make copies and wait until they run, unless `wait` is False; one result for each.

    Raises NotFound, SandboxFailed, Conflict where the original is in the middle of a change, InvalidPolicy. A copy that
    came to nothing leaves nothing.
    """
    bound = None if wish.policy is None else await egress.checked(wish.policy)
    if not 1 <= wish.count <= MAX_FORKS:
        raise InvalidArgument(f"count must be 1 to {MAX_FORKS}; got {wish.count}.")
    async with plane.db.transaction() as tx:
        parent = await lifecycle.locked(tx, project, sandbox)
        if parent.state not in _FROM:
            raise Conflict(f"Sandbox {sandbox} is {parent.state}. Try again.", code="sandbox_busy", retry_after_s=1)
        made = [await _insert(plane, tx, parent, wish, bound, held=wait) for _ in range(wish.count)]
    plane.activity.touch(sandbox)
    if not wait:
        return [Child(operation) for _, operation in made]
    lag = await _make(plane, parent, [child for child, _ in made])
    if lag is not None:
        await _heal(plane, made, lag)
    return [await _child(plane, operation.id, project) for _, operation in made]


async def _insert(
    plane: Plane, tx: Queries, parent: Sandbox, wish: ForkWish, bound: Collection[str] | None, *, held: bool
) -> tuple[Sandbox, Operation]:
    spec = _spec(parent, wish)
    lease = plane.lease if held else None
    child = await sandboxes.insert(
        tx, SandboxId(new_id()), parent.project, spec, parent.worker, lease, plane.clock.now()
    )
    assert child is not None, "only a template can be missing"
    source = await policies.get(tx, parent.id)
    assert source is not None, "the parent's row is locked"
    policy = without_credentials(source.document) if wish.policy is None else wish.policy
    if bound is None:
        bound = secret_names(read(policy))
    await policies.begin_with(tx, child.id, policy, bound, source.password)
    operation = await operations.insert(tx, child, OperationKind.FORK)
    assert operation is not None, "only an idempotency key can be taken"
    return child, operation


def _spec(parent: Sandbox, wish: ForkWish) -> SandboxSpec:
    deadlines: Deadlines = lifecycle.changed(parent.spec.deadlines, wish.changes)
    spec = dataclasses.replace(
        parent.spec,
        env={**parent.spec.env, **wish.env},
        labels=parent.spec.labels if wish.labels is None else wish.labels,
        agent_token=secrets.token_hex(32),
        deadlines=deadlines,
        parent=parent.id,
        desired=Desired.RUNNING,
        desired_reason=None,
        suspend_memory=True,
    )
    check_spec(spec.vcpus, spec.memory_mib, spec.env, spec.labels)
    check_deadlines(deadlines)
    return spec


async def _make(plane: Plane, parent: Sandbox, children: Sequence[Sandbox]) -> SpaceError | None:
    """Have the copies made; returns why nobody can tell what became of them."""
    plane.held.update((child.id, child.epoch) for child in children)
    try:
        await steps.fork(plane, parent, children)
    except (Stale, Unavailable) as error:
        for child in children:
            await sandboxes.release(plane.db, child)
        return error
    else:
        return None
    finally:
        for child in children:
            if plane.held.get(child.id) == child.epoch:
                del plane.held[child.id]


async def _heal(plane: Plane, made: Sequence[tuple[Sandbox, Operation]], lag: SpaceError) -> None:
    """Have each copy found or made on its own, as long as a call waits for a worker; give up the others."""
    deadline = asyncio.get_running_loop().time() + waiting.WAIT_UNAVAILABLE_S
    for child, operation in made:
        await reconcile(plane, child.id)
        left_s = max(0.0, deadline - asyncio.get_running_loop().time())
        done = await waiting.finished(plane, operation, left_s)
        if done.status is OperationStatus.RUNNING and await abandon(plane, child.id, lag, min_age_s=0):
            await reconcile(plane, child.id)


async def _child(plane: Plane, operation: OperationId, project: ProjectId) -> Child:
    done = await operations.get(plane.db, project, operation)
    assert done is not None, "operations live as long as their sandbox, which is kept for days"
    if done.error is not None:
        return Child(done, error=done.error)
    return Child(done, sandbox=await sandboxes.get(plane.db, done.sandbox))
