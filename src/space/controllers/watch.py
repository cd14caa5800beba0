"""Holds each worker's watch and carries its facts into the rows.

    worker says                     row says                      becomes
    failed                          running, paused, suspended    failed, with the worker's reason
    paused / running                running / paused              paused (`disk_full`) / running
    suspended                       running, paused               suspending: a call was lost; reconciling finds out
    running, paused                 suspended                     restoring: likewise
    nothing of it any more          running, paused, suspended    failed: the worker lost it
    something that no row wants     -                             deleted at the worker
    a snapshot nobody has           -                             likewise: whoever asked for it, or recorded it, died
    an older policy, or secrets     a newer generation            told the newest
    a provider rotated a secret     the value that it replaces    the next value (control/rotations.py)
    no authority, or an old one     -                             given one

The table is `model/convergence.py: told`. Rows that somebody is at work on are left to them.

A worker that does not answer changes nothing: its VMs most likely run on, and only it can tell.
"""

import asyncio
from collections.abc import Mapping

from space.control import authority, egress, rotations
from space.control.happening import happen
from space.control.plane import Plane
from space.control.steps import LOST
from space.control.vault import CannotOpen
from space.control.workers import WorkerLink
from space.model.convergence import told
from space.model.egress import Generations
from space.model.errors import SpaceError, Stale, Unavailable
from space.model.ids import SandboxId, WorkerId
from space.model.lifecycle import Event, State
from space.model.rotation import Rotation, fingerprint
from space.model.sandbox import Desired, Sandbox
from space.store import policies, sandboxes, templates
from space.telemetry import logger
from space.wire.worker import GoneFact, HeartbeatFact, RotatedFact, SandboxFact, SyncedFact, VmState, WorkerInfo

RECONNECT_S = 0.3
COMPARE_EVERY_S = 15
"""How often everything is compared although no fact asked for it: heals what a lost fact would leave."""


async def watch(plane: Plane, link: WorkerLink) -> None:
    """Follow one worker for ever."""
    reachable = True
    while True:
        try:
            info = await link.client.info()
            link.id, link.memory_free_mib = WorkerId(info.worker_id), info.memory_free_mib
            reachable = True
            await _authorise(plane, link, info)
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
                    await _authorise(plane, link, await link.client.info())
                    await compare(plane, link)
            case SandboxFact() if link.connected and not expected(plane, fact):
                await _apply(plane, link, SandboxId(fact.id), fact, sure=False)
            case GoneFact() if link.connected:
                # Asked again, since the news may be older than a start that has succeeded meanwhile.
                held = {other.id: other for other in await link.client.sandboxes()}
                await _apply(plane, link, SandboxId(fact.id), held.get(fact.id), sure=False)
            case RotatedFact():
                await _keep(plane, link, fact.to_rotation())
            case _:  # expected, or before `synced`: the comparison covers it
                pass


async def _keep(plane: Plane, link: WorkerLink, rotation: Rotation) -> None:
    """Store what came of a secret, and tell the worker that it is; where it cannot be, the worker goes on telling."""
    try:
        await rotations.keep(plane, rotation)
    except CannotOpen as error:
        logger().error("rotation_postponed", secret_id=rotation.secret, error=str(error))
        return
    await link.client.rotation_stored(rotation.secret, fingerprint(rotation.value))


def expected(plane: Plane, fact: SandboxFact) -> bool:
    """Tell whether a fact is about a change that this process is having made, and so hears of from the call itself.

    That it failed, or is durable, is news all the same.
    """
    return SandboxId(fact.id) in plane.held and fact.state != "failed" and not fact.durable


async def compare(plane: Plane, link: WorkerLink) -> None:
    """Bring rows and worker together, whatever was missed.

    The order of reading matters: a row read *before* the worker's list must be in it, and what the list holds must have
    a row read *after* it, since rows come first when something is made and go last.
    """
    assert link.id is not None
    believed = await sandboxes.on_worker(plane.db, link.id)
    held = {SandboxId(fact.id): fact for fact in await link.client.sandboxes()}
    await _tell_egress(plane, held)
    for row in believed:
        await _apply(plane, link, row.id, held.get(row.id), sure=False)
    rows = await sandboxes.by_ids(plane.db, held.keys())
    for sandbox, fact in held.items():
        if unwanted(rows.get(sandbox), link.id, fact.state):
            await _remove(link, sandbox, fact.epoch)
    made = await link.client.templates()
    taken = {template.digest: template.sandbox for template in made if template.sandbox is not None}
    for digest in await templates.unknown(plane.db, taken):
        await link.client.delete_template(digest)
        logger().info("orphan_snapshot_deleted", digest=digest, worker=link.id)


async def _authorise(plane: Plane, link: WorkerLink, info: WorkerInfo) -> None:
    """Give a worker something to sign certificates with, in time; it comes before the first sandbox.

    Where that cannot be (the master key is not the one), everything but TLS out of sandboxes goes on.
    """
    if not authority.due(info.authority):
        return
    try:
        made = await authority.issue(plane, WorkerId(info.worker_id))
        await link.client.put_authority(made)
    except Unavailable:
        raise
    except SpaceError as error:
        logger().error("authority_not_issued", worker=info.worker_id, error=str(error))
    else:
        logger().info("authority_issued", worker=info.worker_id, until=made.not_after.isoformat())


async def _tell_egress(plane: Plane, held: Mapping[SandboxId, SandboxFact]) -> None:
    """Tell a worker the policies and secrets that it lacks: it has restarted, or a push was lost."""
    for sandbox, row in (await policies.by_ids(plane.db, held.keys())).items():
        fact = held[sandbox]
        known = Generations(fact.egress_generation, fact.secrets_generation)
        if row.state in egress.AWAKE and lags(known, row.generations):
            await egress.push_or_leave(plane, sandbox, known)


def lags(known: Generations, newest: Generations) -> bool:
    """Tell whether a worker that knows this lacks something."""
    return known.policy < newest.policy or known.secrets < newest.secrets


def unwanted(row: Sandbox | None, worker: WorkerId, state: VmState) -> bool:
    """Tell whether what a worker holds should not be: no row, a row that is over, or one placed elsewhere."""
    if row is None or row.state is State.DELETED or row.worker != worker:
        return True
    return row.state is State.FAILED and state != "failed"


def due(row: Sandbox | None, worker: WorkerId | None, state: VmState | None) -> Event | None:
    """Return what has happened to a row, given what its worker says; None where nothing has.

    Nobody is in the middle of anything with a row that has failed, so that is always believed.
    """
    if row is None or row.worker != worker or row.spec.desired is Desired.DELETED:
        return None
    event = told(row.state, None if state is None else State(state))
    return event if row.settled or event is Event.FAILED else None


async def _apply(plane: Plane, link: WorkerLink, sandbox: SandboxId, fact: SandboxFact | None, *, sure: bool) -> None:
    """Let happen to a row what a fact says. Unless `sure`, it may be older than the row, and is asked for again."""
    while True:
        row = await sandboxes.get(plane.db, sandbox)
        event = due(row, link.id, fact.state if fact else None)
        if row is None:
            return
        if fact is not None and fact.durable and fact.state == "suspended":
            await sandboxes.mark_durable(plane.db, sandbox, fact.generation)
        if event is None:
            return
        if not sure and event is not Event.FAILED:
            held = {other.id: other for other in await link.client.sandboxes()}
            fact, sure = held.get(sandbox), True
            event = due(row, link.id, fact.state if fact else None)
            if event is None:
                return
        reason = fact.reason if fact else LOST
        try:
            await happen(plane, plane.db, row, event, reason=reason)
        except Stale:  # another process was quicker, or something else has begun: look again
            sure = False
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
