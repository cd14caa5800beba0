"""Use cases on what may leave sandboxes, and telling it to their workers.

A change is written with a new generation, and then pushed; the call answers when the gateway decides by it. A push that
does not get through is made up for by `controllers/egress.py`: the row tells which generation its worker is known to
have, and the worker's facts tell which one it has.
"""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Collection

from pydantic import SecretStr

from space.control.plane import Plane
from space.control.secret_values import seal_own, values_for
from space.model.egress import Document, Generations, SandboxEgress
from space.model.errors import InvalidPolicy, NotFound, SpaceError, Stale
from space.model.ids import ProjectId, SandboxId
from space.model.lifecycle import State
from space.model.policy import secret_names
from space.model.policy_document import parse, parse_ceiling
from space.store import policies
from space.telemetry import logger
from space.wire.gateway import EgressOrder, SecretsOrder

_AT_ONCE = 16
"""Sandboxes that are told at the same time."""

MAX_DOCUMENT = 256 * 1024
"""Characters of a policy as JSON."""

AWAKE = frozenset({State.RUNNING, State.PAUSED})


@dataclasses.dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is told about a sandbox's egress."""

    egress: EgressOrder
    secrets: SecretsOrder


async def checked(document: Document) -> frozenset[str]:
    """Return the secrets that a client's policy binds; raises InvalidPolicy."""
    if "ceiling" in document:
        raise InvalidPolicy("ceiling: belongs to the project, not to a sandbox; set it at /v1/project/policy.")
    _check_size(document)
    return secret_names(await asyncio.to_thread(parse, document))


def _check_size(document: Document) -> None:
    if len(json.dumps(document)) > MAX_DOCUMENT:
        raise InvalidPolicy(f"The policy has over {MAX_DOCUMENT} characters as JSON.")


async def get(plane: Plane, project: ProjectId, sandbox: SandboxId) -> SandboxEgress:
    """Return what may leave a sandbox; raises NotFound."""
    found = await policies.get(plane.db, sandbox)
    if found is None or found.project != project or found.state is State.DELETED:
        raise NotFound(f"There is no sandbox {sandbox}; it may have been deleted.")
    return found


async def put(
    plane: Plane,
    project: ProjectId,
    sandbox: SandboxId,
    document: Document,
    e2b: Document | None = None,
    password: SecretStr | None = None,
) -> SandboxEgress:
    """Replace a sandbox's policy; returns when it holds and what it no longer allows has ended.

    `e2b` is how a client of E2B said it; `password` is what came with that for its upstream proxy.

    Raises InvalidPolicy and NotFound. Where the worker does not answer, raises Unavailable: the policy is recorded, and
    holds as soon as the worker is back.
    """
    names = await checked(document)
    async with plane.db.transaction() as tx:
        sealed = seal_own(plane.vault, project, password)
        if not await policies.write(tx, project, sandbox, document, names, e2b, sealed):
            raise NotFound(f"There is no sandbox {sandbox}; it may have been deleted.")
    logger().info("policy_set", sandbox=sandbox, project=project)
    await push(plane, sandbox)
    return await get(plane, project, sandbox)


async def ceiling(plane: Plane, project: ProjectId) -> Document | None:
    """Return what no sandbox of a project exceeds; None where that is not set."""
    return await policies.ceiling(plane.db, project)


async def put_ceiling(plane: Plane, project: ProjectId, document: Document | None) -> None:
    """Replace a project's ceiling, None removes it; returns when it holds for the sandboxes whose worker answers.

    Raises InvalidPolicy.
    """
    if document is not None:
        _check_size(document)
        await asyncio.to_thread(parse_ceiling, document)
    async with plane.db.transaction() as tx:
        touched = await policies.set_ceiling(tx, project, document)
    logger().info("ceiling_set", project=project, sandboxes=len(touched))
    await push_all(plane, touched)


async def orders(plane: Plane, sandbox: SandboxId) -> Orders:
    """Return what a worker is to be told, as the row has it now; raises NotFound where there is no row."""
    found = await policies.get(plane.db, sandbox)
    if found is None:
        raise NotFound(f"There is no sandbox {sandbox}.")
    return await _orders(plane, found)


async def _orders(plane: Plane, found: SandboxEgress) -> Orders:
    return Orders(
        EgressOrder(policy=found.effective, generation=found.generations.policy),
        SecretsOrder(generation=found.generations.secrets, values=await values_for(plane.db, plane.vault, found)),
    )


async def push(plane: Plane, sandbox: SandboxId, known: Generations | None = None) -> None:
    """Tell an awake sandbox's worker what it does not have yet; returns when it goes by it.

    `known` is what the worker says it has, where that was asked. Raises Unavailable, and what the worker refuses it
    with.
    """
    found = await policies.get(plane.db, sandbox)
    if found is None or found.state not in AWAKE or found.worker is None:
        return  # whatever starts it hands over the newest
    has = found.applied if known is None else known
    newest = found.generations
    if has.policy >= newest.policy and has.secrets >= newest.secrets:
        return
    told = await _orders(plane, found)
    client = plane.workers.client(found.worker)
    if has.secrets < newest.secrets:  # first: a new policy may need a new secret
        with contextlib.suppress(Stale):  # somebody has told it something newer
            await client.put_secrets(sandbox, told.secrets)
    if has.policy < newest.policy:
        with contextlib.suppress(Stale):
            await client.put_egress(sandbox, told.egress)
    await policies.mark_applied(plane.db, sandbox, newest)
    logger().info("egress_pushed", sandbox=sandbox, policy=newest.policy, secrets=newest.secrets)


async def push_all(plane: Plane, sandboxes: Collection[SandboxId]) -> None:
    """Push to several; what does not get through is left to the controller."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(sandbox: SandboxId) -> None:
        async with gate:
            await push_or_leave(plane, sandbox)

    async with asyncio.TaskGroup() as group:
        for sandbox in sandboxes:
            group.create_task(one(sandbox))


async def push_or_leave(plane: Plane, sandbox: SandboxId, known: Generations | None = None) -> bool:
    """Push to one; False, and a line in the log, where it does not get through."""
    try:
        await push(plane, sandbox, known)
    except SpaceError as error:
        logger().warning("egress_push_postponed", sandbox=sandbox, error=str(error))
        return False
    return True
