"""Holds each worker's watch and carries its facts into the rows.

    worker says                     row says          becomes
    failed                          running, paused   failed, with the worker's reason
    paused / running                running / paused  paused (`disk_full`) / running
    nothing of it any more          running, paused   failed: the worker lost the VM
    something that no row wants     -                 deleted at the worker

A worker that does not answer changes nothing: its VMs most likely run on, and only it can tell.
"""

import asyncio

from space.control.plane import Plane
from space.control.workers import WorkerLink
from space.model.errors import SpaceError, Stale, Unavailable
from space.model.ids import SandboxId, WorkerId
from space.model.lifecycle import Event, State
from space.model.sandbox import Desired, Sandbox
from space.store import sandboxes
from space.telemetry import logger
from space.wire.worker import GoneFact, HeartbeatFact, SandboxFact, SyncedFact, VmState

RECONNECT_S = 0.3
COMPARE_EVERY_S = 15
"""How often everything is compared although no fact asked for it: heals what a lost fact would leave."""

LOST = "The worker lost the VM."

EVENTS: dict[State, dict[VmState | None, Event]] = {
    State.RUNNING: {"failed": Event.FAILED, None: Event.FAILED, "paused": Event.PAUSED},
    State.PAUSED: {"failed": Event.FAILED, None: Event.FAILED, "running": Event.RESUMED},
}
"""What a fact means for a row, by the row's state; None: the worker holds nothing of it."""


async def watch(plane: Plane, link: WorkerLink) -> None:
    """Follow one worker for ever."""
    reachable = True
    while True:
        try:
            info = await link.client.info()
            link.id, link.memory_free_mib = WorkerId(info.worker_id), info.memory_free_mib
            reachable = True
            await _follow(plane, link)
        except SpaceError as error:
            if reachable or link.connected:
                logger().warning("worker_unreachable", worker=link.id, error=str(error))
            reachable = False
        finally:
            link.connected = False
        await asyncio.sleep(RECONNECT_S)


async def _follow(plane: Plane, link: WorkerLink) -> None:
    clock = asyncio.get_running_loop().time
    compared_at = clock()
    async for fact in link.client.watch():
        match fact:
            case SyncedFact():
                await compare(plane, link)
                link.connected = True
                logger().info("worker_connected", worker=link.id, boot=fact.boot_id)
            case HeartbeatFact():
                link.memory_free_mib = fact.memory_free_mib
                if clock() - compared_at > COMPARE_EVERY_S:
                    compared_at = clock()
                    await compare(plane, link)
            case SandboxFact() if link.connected:
                await _apply(plane, link, SandboxId(fact.id), fact)
            case GoneFact() if link.connected:
                # Asked again, since the news may be older than a start that has succeeded meanwhile.
                held = {other.id: other for other in await link.client.sandboxes()}
                await _apply(plane, link, SandboxId(fact.id), held.get(fact.id))
            case _:  # before `synced`: the comparison covers it
                pass


async def compare(plane: Plane, link: WorkerLink) -> None:
    """Bring rows and worker together, whatever was missed.

    The order of reading matters: a row read *before* the worker's list must be in it, and what the list holds must have
    a row read *after* it, since rows come first when something is made and go last.
    """
    assert link.id is not None
    believed = await sandboxes.on_worker(plane.db, link.id)
    held = {SandboxId(fact.id): fact for fact in await link.client.sandboxes()}
    for row in believed:
        await _apply(plane, link, row.id, held.get(row.id))
    rows = await sandboxes.by_ids(plane.db, held.keys())
    for sandbox, fact in held.items():
        if unwanted(rows.get(sandbox), link.id, fact.state):
            await _remove(link, sandbox, fact.epoch)


def unwanted(row: Sandbox | None, worker: WorkerId, state: VmState) -> bool:
    """Tell whether what a worker holds should not be: no row, a row that is over, or one placed elsewhere."""
    if row is None or row.state is State.DELETED or row.worker != worker:
        return True
    return row.state is State.FAILED and state != "failed"


def due(row: Sandbox | None, worker: WorkerId | None, state: VmState | None) -> Event | None:
    """Return what has happened to a row, given what its worker says; None where nothing has.

    Rows that are being created or deleted are left to whoever reconciles them.
    """
    if row is None or row.worker != worker or row.spec.desired is not Desired.RUNNING or row.state not in EVENTS:
        return None
    return EVENTS[row.state].get(state)


async def _apply(plane: Plane, link: WorkerLink, sandbox: SandboxId, fact: SandboxFact | None) -> None:
    while True:
        row = await sandboxes.get(plane.db, sandbox)
        event = due(row, link.id, fact.state if fact else None)
        if row is None or event is None:
            return
        reason = fact.reason if fact else LOST
        try:
            async with plane.db.transaction() as tx:
                await sandboxes.move(tx, row, event, reason=reason)
        except Stale:  # another process was quicker, or a delete has begun: look again
            continue
        logger().info("sandbox_changed", sandbox=sandbox, event_type=event, reason=reason)
        return


async def _remove(link: WorkerLink, sandbox: SandboxId, epoch: int) -> None:
    try:
        await link.client.delete(sandbox, epoch)
    except Stale:
        return
    except Unavailable:
        raise
    except SpaceError as error:
        logger().warning("orphan_not_deleted", sandbox=sandbox, worker=link.id, error=str(error))
        return
    logger().info("orphan_deleted", sandbox=sandbox, worker=link.id)
