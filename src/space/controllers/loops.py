"""All loops of the controller, as one thing that a process runs."""

import asyncio

from space.control.plane import Plane
from space.controllers.builds import give_up_lost, run_builds
from space.controllers.egress import forget_events, push_lagging, reseal, store_events
from space.controllers.idle import put_away
from space.controllers.lagging import forget_deleted, keep_leases, reconcile_lagging
from space.controllers.watch import watch


async def run(plane: Plane) -> None:
    """Run until cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(plane.notices.run())
        group.create_task(keep_leases(plane))
        group.create_task(reconcile_lagging(plane))
        group.create_task(forget_deleted(plane))
        group.create_task(put_away(plane))
        group.create_task(push_lagging(plane))
        group.create_task(forget_events(plane))
        group.create_task(reseal(plane))
        group.create_task(run_builds(plane))
        group.create_task(give_up_lost(plane))
        for link in plane.workers.links:
            group.create_task(watch(plane, link))
            group.create_task(store_events(plane, link))
