"""Puts sandboxes away whose deadlines have come: the ones that time out, and the ones that nobody uses.

Twice a second, in every api process; rows that another one is at are left to it.

    compare the clock       what follows goes by the time that this gives, see control/clock.py
    write what was used     this process's requests, so that none is overlooked
    timeouts                delete, or wish suspended; one statement
    idle ones               each is looked into: its worker asks its agent; busy counts as used, else wish suspended

A request that another process has noted is written within FLUSH_S; so an idle deadline is looked at GRACE_S after it
came. The wish is written only if the row has neither been used nor changed since. What is written here is carried out
by reconciling, like every wish. A round costs three statements by index, however many sandboxes there are.
"""

import asyncio
import datetime

from space.control.activity import FLUSH_S
from space.control.plane import Plane
from space.model.errors import SpaceError, Unavailable
from space.model.lifecycle import State
from space.model.sandbox import Sandbox
from space.store import deadlines
from space.telemetry import logger

ROUND_S = 0.5
GRACE_S = FLUSH_S + 0.2
AT_ONCE = 32
"""Sandboxes looked into at the same time; those of which a worker is slow to answer keep the others waiting no longer
than that."""


async def put_away(plane: Plane) -> None:
    """Do a round after the other, for ever."""
    busy: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as group:
        while True:
            try:
                for sandbox in await round_of(plane, AT_ONCE - len(busy)):
                    task = group.create_task(look_into(plane, sandbox))
                    busy.add(task)
                    task.add_done_callback(busy.discard)
            except Unavailable as error:
                logger().warning("deadlines_postponed", error=str(error))
            await asyncio.sleep(ROUND_S)


async def round_of(plane: Plane, limit: int) -> list[Sandbox]:
    """Do one round; returns at most `limit` sandboxes that seem idle, which no other process will look into now."""
    await plane.clock.compare(plane.db)
    await plane.activity.flush(plane.db)
    now = plane.clock.now()
    for sandbox in await deadlines.expire(plane.db, now, AT_ONCE):
        logger().info("sandbox_timed_out", sandbox=sandbox)
    if limit <= 0:
        return []
    return await deadlines.claim_idle(plane.db, now - datetime.timedelta(seconds=GRACE_S), now, limit)


async def look_into(plane: Plane, sandbox: Sandbox) -> None:
    """Wish an idle sandbox suspended, unless something goes on in it or it has been used meanwhile.

    Where its worker or agent does not answer it is looked into again later: nobody can tell.
    """
    try:
        if await _in_use(plane, sandbox):
            plane.activity.touch(sandbox.id)
            return
        idle_s = sandbox.spec.deadlines.idle_timeout_s
        if await deadlines.suspend_idle(plane.db, sandbox, f"idle for {idle_s} s"):
            logger().info("sandbox_idle", sandbox=sandbox.id, idle_s=idle_s)
    except SpaceError as error:
        logger().warning("idle_unknown", sandbox=sandbox.id, error=str(error))


async def _in_use(plane: Plane, sandbox: Sandbox) -> bool:
    """Ask what goes on in it. In one that is paused nothing does."""
    if sandbox.state is State.PAUSED or sandbox.worker is None:
        return False
    found = await plane.workers.client(sandbox.worker).activity(sandbox.id)
    return bool(found.foreground_commands or found.attached_readers or found.open_connections)
