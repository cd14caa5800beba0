"""Takes template builds from the queue and has them done, a few at a time; ends those whose process is gone."""

import asyncio

from space.control.build_runs import LEASE_S, carry_out
from space.control.plane import Plane
from space.model.errors import SpaceError, Unavailable
from space.model.template_build import TemplateBuild
from space.store import builds
from space.store.notices import RECHECK_S, Channel
from space.telemetry import logger

AT_ONCE = 2
"""Builds that one process has done at the same time. The workers bound them too."""

_REAP_S = 2.0


async def run_builds(plane: Plane) -> None:
    """Do what waits, for ever."""
    free = asyncio.Semaphore(AT_ONCE)
    came = asyncio.Event()

    async def done(build: TemplateBuild) -> None:
        try:
            await carry_out(plane, build)
        except SpaceError as error:  # its end could not be recorded: it is given up when its lease is over
            logger().warning("build_end_lost", build=str(build.id), error=str(error))
        finally:
            free.release()

    with plane.notices.listening(Channel.BUILD, lambda _: came.set()):
        async with asyncio.TaskGroup() as group:
            while True:
                await free.acquire()
                group.create_task(done(await _next(plane, came)))


async def _next(plane: Plane, came: asyncio.Event) -> TemplateBuild:
    """Return the build that has waited longest, which is ours from now on; waits where there is none."""
    while True:
        came.clear()
        try:
            build = await builds.claim(plane.db, plane.owner, LEASE_S)
        except Unavailable:
            build = None
        if build is not None:
            return build
        try:
            async with asyncio.timeout(RECHECK_S):
                await came.wait()
        except TimeoutError:
            continue


async def give_up_lost(plane: Plane) -> None:
    """End builds whose process does not keep its lease, for ever."""
    while True:
        try:
            for build in await builds.give_up_lost(plane.db):
                logger().warning("build_given_up", build=str(build))
        except Unavailable:
            pass  # the others tell of it
        await asyncio.sleep(_REAP_S)
