"""Reconciles every row whose status lags: what a crash left half done, what could not be done yet, `?wait=0`.

Woken by the database's notices, and each second anyway. Rows being worked on are leased, so that many processes can run
this at once.
"""

import asyncio
import contextlib

from space.control.plane import LEASE_TTL_S, Plane
from space.control.reconcile import reconcile
from space.model.errors import SpaceError, Unavailable
from space.model.ids import SandboxId
from space.store import sandboxes
from space.store.notices import RECHECK_S, Channel
from space.telemetry import logger

AT_ONCE = 32
RETRY_S = 1.0
KEEP_DELETED_DAYS = 30
_PURGE_EVERY_S = 3600


async def reconcile_lagging(plane: Plane) -> None:
    """Work on lagging rows for ever, at most AT_ONCE at a time, each at most once a second."""
    woken = asyncio.Event()
    busy: set[SandboxId] = set()

    async def work(sandbox: SandboxId) -> None:
        try:
            if isinstance(await reconcile(plane, sandbox), SpaceError):
                await asyncio.sleep(RETRY_S)
        except SpaceError as error:
            logger().warning("reconcile_postponed", sandbox=sandbox, error=str(error))
            await asyncio.sleep(RETRY_S)
        except Exception:  # noqa: BLE001 - one sandbox's trouble must not end the loop for all
            logger().exception("reconcile_crashed", sandbox=sandbox)
            await asyncio.sleep(RETRY_S)
        finally:
            busy.discard(sandbox)
            woken.set()

    # who holds a row sees a new wish with its next move of it, so nobody need be told of that
    with plane.notices.listening(Channel.LAGGING, lambda _: woken.set()):
        async with asyncio.TaskGroup() as group:
            while True:
                woken.clear()
                for sandbox in await _due(plane, AT_ONCE):
                    if sandbox not in busy and len(busy) < AT_ONCE:
                        busy.add(sandbox)
                        group.create_task(work(sandbox))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RECHECK_S):
                        await woken.wait()


async def _due(plane: Plane, limit: int) -> list[SandboxId]:
    try:
        return await sandboxes.lagging(plane.db, limit)
    except Unavailable as error:
        logger().warning("database_unreachable", error=str(error), cause=repr(error.__cause__))
        return []


async def keep_leases(plane: Plane) -> None:
    """Renew the leases of this process's work in progress, in time for two attempts to fail."""
    while True:
        await asyncio.sleep(LEASE_TTL_S / 4)
        if plane.held:
            try:
                await sandboxes.renew(plane.db, plane.held, LEASE_TTL_S)
            except Unavailable as error:
                logger().warning("leases_not_renewed", error=str(error))


async def forget_deleted(plane: Plane) -> None:
    """Remove rows, events and operations of sandboxes that were deleted KEEP_DELETED_DAYS ago."""
    while True:
        try:
            await sandboxes.purge(plane.db, KEEP_DELETED_DAYS)
        except Unavailable as error:
            logger().warning("purge_postponed", error=str(error))
        await asyncio.sleep(_PURGE_EVERY_S)
