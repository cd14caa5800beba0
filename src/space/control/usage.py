"""Use cases on what sandboxes use of their processors, memory and disk."""

import asyncio
from collections.abc import Collection

from space.control import sandboxes
from space.control.plane import Plane
from space.model.errors import NotFound, SpaceError, Unavailable
from space.model.ids import ProjectId, SandboxId
from space.model.sandbox import Sandbox
from space.telemetry import logger
from space.wire.worker import UsageSample

_AT_ONCE = 16


async def lately(plane: Plane, project: ProjectId, sandbox: SandboxId) -> list[UsageSample]:
    """Return what a sandbox used in the last hour, oldest first, and now if it runs.

    Raises NotFound, and Unavailable where its worker does not answer.
    """
    return await _samples(plane, await sandboxes.get(plane, project, sandbox))


async def now(plane: Plane, project: ProjectId, wanted: Collection[SandboxId]) -> dict[SandboxId, UsageSample]:
    """Return the newest sample of each of these sandboxes that has one; those that are not there are left out."""
    gate = asyncio.Semaphore(_AT_ONCE)
    found: dict[SandboxId, UsageSample] = {}

    async def one(sandbox: SandboxId) -> None:
        try:
            async with gate:
                samples = await lately(plane, project, sandbox)
        except (NotFound, Unavailable) as error:
            logger().info("usage_unknown", sandbox=sandbox, error=str(error))
            return
        if samples:
            found[sandbox] = samples[-1]

    async with asyncio.TaskGroup() as group:
        for sandbox in wanted:
            group.create_task(one(sandbox))
    return found


async def _samples(plane: Plane, row: Sandbox) -> list[UsageSample]:
    if row.worker is None:
        return []
    try:
        return (await plane.workers.client(row.worker).usage(row.id)).samples
    except Unavailable:
        raise
    except SpaceError:
        return []  # the worker has nothing of it (any more), and so no samples
