"""Use cases on sandboxes, for every surface: create, get, list, delete, events."""

import dataclasses
import secrets
from collections.abc import Collection, Mapping, Sequence

from pydantic import SecretStr

from space.control import egress, templates, volumes, waiting
from space.control.plane import Plane
from space.control.reconcile import abandon, converge, reconcile
from space.control.secret_values import seal_own
from space.control.waiting import carried_out, finished, result
from space.model.egress import Document
from space.model.errors import Conflict, InvalidArgument, NotFound, SpaceError, Unavailable
from space.model.ids import OperationId, ProjectId, SandboxId, WorkerId, new_id
from space.model.lifecycle import State
from space.model.operation import IdempotencyKey, Operation, OperationKind, OperationStatus, SandboxEvent
from space.model.sandbox import (
    DEFAULT_MEMORY_MIB,
    DEFAULT_VCPUS,
    Deadlines,
    Desired,
    Sandbox,
    SandboxSpec,
    check_deadlines,
    check_spec,
)
from space.model.sandbox_query import SandboxQuery
from space.model.template import Template
from space.store import events, operations, policies, sandboxes, wishes
from space.store.sandboxes import Page


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """What a client asks for. `template` is the name or digest of a template or snapshot; None takes its size."""

    template: str
    vcpus: int | None
    memory_mib: int | None
    env: Mapping[str, str]
    labels: Mapping[str, str]
    deadlines: Deadlines
    policy: Document | None = None
    """What may leave it; None: nothing."""
    proxy_password: SecretStr | None = None
    """Of the policy's upstream proxy, where it came with it."""
    public_ports: bool = False
    mask_host: str | None = None
    e2b: Mapping[str, object] | None = None
    volumes: Sequence[tuple[str, str]] = ()
    """Name and path of each volume to mount."""


class _KeyUsed(Exception):
    """Another request has taken the idempotency key; rolls back."""


async def create(plane: Plane, project: ProjectId, wish: Wish, key: IdempotencyKey | None) -> Sandbox:
    """Make a sandbox, and wait until its agent has answered.

    With an idempotency key that was used before for the same request, returns what that one made. Raises
    InvalidArgument, InvalidPolicy, NotFound (template), Conflict (key in flight), NoCapacity and Unavailable (nothing
    is left behind), BootFailed (the sandbox stays, `failed`).
    """
    sandbox, operation = await _ask(plane, project, wish, key, held=True)
    if operation.status is not OperationStatus.RUNNING:
        return sandbox
    came = await converge(plane, sandbox)
    if isinstance(came, Sandbox) and came.state is State.RUNNING:
        return came
    lag = came if isinstance(came, SpaceError) else None
    done = await finished(plane, operation, waiting.WAIT_S if lag is None else waiting.WAIT_UNAVAILABLE_S)
    if done.status is OperationStatus.RUNNING and lag is not None:
        if await abandon(plane, sandbox.id, lag, min_age_s=0):
            await reconcile(plane, sandbox.id)
            raise lag
        done = await finished(plane, operation, waiting.WAIT_S)
    try:
        return (await result(plane, done))[0]
    except SpaceError as error:
        error.sandbox = sandbox.id
        raise


async def begin(plane: Plane, project: ProjectId, wish: Wish, key: IdempotencyKey | None) -> Operation:
    """Have a sandbox made and do not wait for it. Raises what `create` does before anything is made."""
    return (await _ask(plane, project, wish, key, held=False))[1]


async def _ask(
    plane: Plane, project: ProjectId, wish: Wish, key: IdempotencyKey | None, *, held: bool
) -> tuple[Sandbox, Operation]:
    """Write the wish into a new row, `held` for this process to carry it out; or return what its key made before."""
    check_spec(
        DEFAULT_VCPUS if wish.vcpus is None else wish.vcpus,
        DEFAULT_MEMORY_MIB if wish.memory_mib is None else wish.memory_mib,
        wish.env,
        wish.labels,
    )
    check_deadlines(wish.deadlines)
    bound = frozenset() if wish.policy is None else await egress.checked(wish.policy)
    if key is not None and (known := await _repeated(plane, project, key)) is not None:
        return known
    try:
        return await _insert(plane, project, wish, bound, key, held=held)
    except _KeyUsed:
        assert key is not None
        known = await _repeated(plane, project, key)
        if known is None:
            raise Unavailable("A request with the same Idempotency-Key has just come to nothing. Try again.") from None
        return known


async def _insert(
    plane: Plane, project: ProjectId, wish: Wish, bound: Collection[str], key: IdempotencyKey | None, *, held: bool
) -> tuple[Sandbox, Operation]:
    template = await templates.find_usable(plane, project, wish.template)
    vcpus, memory_mib = _size(wish, template)
    spec = SandboxSpec(
        template=template.digest,
        template_name=wish.template,
        vcpus=vcpus,
        memory_mib=memory_mib,
        env=wish.env,
        labels=wish.labels,
        agent_token=secrets.token_hex(32),
        deadlines=wish.deadlines,
        public_ports=wish.public_ports,
        mask_host=wish.mask_host,
        e2b=wish.e2b,
    )
    # Held, nobody is told of it before it runs, and what says that it runs is synced, this with it. Lost with the
    # host's power, it leaves at most a VM that no row wants.
    async with plane.db.transaction(synced=not held) as tx:
        mounts, where = await volumes.mounted(tx, project, wish.volumes) if wish.volumes else ((), None)
        spec = dataclasses.replace(spec, volumes=mounts)
        lease = plane.lease if held else None
        made = await sandboxes.insert(
            tx, SandboxId(new_id()), project, spec, where or _place(plane), lease, plane.clock.now()
        )
        if made is None:
            raise NotFound(f"Template {wish.template!r} was deleted just now.")
        if wish.policy is not None:
            own = seal_own(plane.vault, project, wish.proxy_password)
            await policies.begin_with(tx, made.id, wish.policy, bound, own)
        operation = await operations.insert(tx, made, OperationKind.CREATE, key)
        if operation is None:
            raise _KeyUsed
    return made, operation


def _size(wish: Wish, template: Template) -> tuple[int, int]:
    """Return vCPUs and MiB of memory: as wished, else the snapshot's, else the defaults.

    Raises InvalidArgument for another size than that of the memory which a snapshot holds.
    """
    vcpus = wish.vcpus or template.vcpus or DEFAULT_VCPUS
    memory_mib = wish.memory_mib or template.memory_mib or DEFAULT_MEMORY_MIB
    if template.memory and (vcpus, memory_mib) != (template.vcpus, template.memory_mib):
        raise InvalidArgument(
            f"Snapshot {template.name} holds memory: a sandbox made of it has vcpus {template.vcpus} and memory_mib "
            f"{template.memory_mib}. Leave both out, or take a snapshot without memory."
        )
    return vcpus, memory_mib


def _place(plane: Plane) -> WorkerId | None:
    """Return the worker for a new sandbox; None leaves it to reconciling, when one answers again."""
    try:
        return plane.workers.place()
    except Unavailable:
        return None


async def _repeated(plane: Plane, project: ProjectId, key: IdempotencyKey) -> tuple[Sandbox, Operation] | None:
    found = await operations.by_key(plane.db, project, key.text)
    if found is None:
        return None
    operation, request_hash = found
    if request_hash != key.request_hash:
        raise InvalidArgument(
            "This Idempotency-Key was used for a different request; use a new key for a new request.",
            code="idempotency_key_reused",
        )
    if operation.status is OperationStatus.RUNNING:
        raise Conflict(
            "The first request with this Idempotency-Key is still being done. Try again in a second.",
            code="idempotency_in_flight",
            retry_after_s=1,
        )
    return await result(plane, operation)


async def get(plane: Plane, project: ProjectId, sandbox: SandboxId) -> Sandbox:
    """Return one of the project's sandboxes; raises NotFound, also for a deleted one."""
    found = await sandboxes.get(plane.db, sandbox)
    if found is None or found.project != project or found.state is State.DELETED:
        raise NotFound(f"There is no sandbox {sandbox}; it may have been deleted.")
    return found


async def listed(
    plane: Plane, project: ProjectId, query: SandboxQuery, *, limit: int, after: SandboxId | None
) -> list[Sandbox]:
    """Return sandboxes in the query's order, at most `limit`.

    `after` is the last one of the page before; it may have been deleted meanwhile. Raises NotFound where it never was.
    """
    page = Page(limit)
    if after is not None:
        last = await sandboxes.get(plane.db, after)
        if last is None or last.project != project:
            raise NotFound("cursor: there is no such place in the list; take it from `next_cursor` of the page before.")
        page = Page(limit, (last.created_at, last.id))
    return await sandboxes.listed(plane.db, project, query, page)


async def how_many(plane: Plane, project: ProjectId, query: SandboxQuery) -> int:
    """Return how many sandboxes the query is about."""
    return await sandboxes.how_many(plane.db, project, query)


async def delete(plane: Plane, project: ProjectId, sandbox: SandboxId, *, wait: bool) -> Operation | None:
    """Delete from any state and, unless `wait` is False, wait until everything is given back.

    Returns the operation; None where it is deleted already. Raises NotFound for an id the project never had, and
    Unavailable where the worker does not answer: the delete is recorded then and will be done.
    """
    operation = await _ask_delete(plane, project, sandbox)
    return await carried_out(plane, operation) if operation is not None and wait else operation


async def _ask_delete(plane: Plane, project: ProjectId, sandbox: SandboxId) -> Operation | None:
    async with plane.db.transaction() as tx:
        row = await sandboxes.lock(tx, project, sandbox)
        if row is None:
            raise NotFound(f"There is no sandbox {sandbox}.")
        if row.state is State.DELETED:
            return None
        if row.spec.desired is not Desired.DELETED:
            row = await wishes.ask_delete(tx, sandbox)
        under_way = await operations.running(tx, sandbox, OperationKind.DELETE)
        return under_way or await operations.insert(tx, row, OperationKind.DELETE)


async def events_of(plane: Plane, project: ProjectId, sandbox: SandboxId, after: int, limit: int) -> list[SandboxEvent]:
    """Return what happened to a sandbox after event number `after`; of a deleted one too."""
    found = await sandboxes.get(plane.db, sandbox)
    if found is None or found.project != project:
        raise NotFound(f"There is no sandbox {sandbox}.")
    return await events.listed(plane.db, sandbox, after, limit)


async def operation_of(plane: Plane, project: ProjectId, operation: OperationId) -> Operation:
    """Return one of the project's operations; raises NotFound."""
    found = await operations.get(plane.db, project, operation)
    if found is None:
        raise NotFound(f"There is no operation {operation}.")
    return found
