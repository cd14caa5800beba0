"""Keeps workers and rows together in what may leave sandboxes, and carries what was decided into the database.

    push what lags        a policy, ceiling or secret was written, and its worker is not known to go by it
    store events          each worker's stream, from where it was read to last; told twice is kept once
    raise alarms          where there is too much of something (model/egress_alarms.py): events of their own
    forget events         over the bound of a sandbox, or too old
    seal anew             once at the start: what an older master key sealed

Several processes may do this at once; what one has done is nothing to do for the other.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from space.control import authority, egress, secrets
from space.control.plane import Plane
from space.control.workers import WorkerLink
from space.host.tasks import together
from space.model.egress_alarms import Alarms
from space.model.errors import SpaceError, Unavailable
from space.model.ids import SandboxId, WorkerId
from space.store import egress_events, policies
from space.telemetry import logger
from space.wire.gateway import EgressEvent

RETRY_S = 1.0
AT_ONCE = 64
BATCH = 500
BATCH_S = 0.1
"""How long events are gathered before they are stored together."""

TRIM_EVERY = 1000
_EXPIRE_EVERY_S = 3600
_BACKLOG = 10_000


async def push_lagging(plane: Plane) -> None:
    """Push what is not known to have arrived, for ever, each second."""
    while True:
        try:
            await egress.push_all(plane, await policies.unapplied(plane.db, AT_ONCE))
        except Unavailable as error:
            logger().warning("egress_push_postponed", error=str(error))
        await asyncio.sleep(RETRY_S)


async def store_events(plane: Plane, link: WorkerLink) -> None:
    """Store what one worker's gateway decides, for ever."""
    alarms, kept = Alarms(), Counter[SandboxId]()
    while True:
        try:
            if link.id is not None:
                await _follow(plane, link, link.id, alarms, kept)
        except Unavailable:
            pass  # the watch of this worker tells of it
        except SpaceError as error:
            logger().warning("egress_events_postponed", worker=link.id, error=str(error))
        await asyncio.sleep(RETRY_S)


async def _follow(plane: Plane, link: WorkerLink, worker: WorkerId, alarms: Alarms, kept: Counter[SandboxId]) -> None:
    boot, seq = await egress_events.position(plane.db, worker)
    queue: asyncio.Queue[EgressEvent | None] = asyncio.Queue(_BACKLOG)

    async def read() -> None:
        with contextlib.suppress(Unavailable):
            async with contextlib.aclosing(link.client.egress_events(boot, seq)) as events:
                async for event in events:
                    await queue.put(event)
        await queue.put(None)  # what was read before the end is stored: its gateway may be gone, and cannot repeat it

    async def store() -> None:
        while (first_one := await queue.get()) is not None:
            await asyncio.sleep(BATCH_S)
            batch, ended = _gathered(first_one, queue)
            for process, told in itertools.groupby(batch, key=lambda event: event.boot):
                await _store(plane, worker, process, with_alarms(alarms, told), kept)
            if ended:
                return

    await together(read(), store())


def _gathered(first_one: EgressEvent, queue: asyncio.Queue[EgressEvent | None]) -> tuple[list[EgressEvent], bool]:
    """Return what has come by now, at most BATCH, and whether the end has."""
    batch = [first_one]
    while len(batch) < BATCH and not queue.empty():
        event = queue.get_nowait()
        if event is None:
            return batch, True
        batch.append(event)
    return batch, False


def with_alarms(alarms: Alarms, events: Iterable[EgressEvent]) -> list[EgressEvent]:
    """Return events of one gateway process, each followed by the alarm that it sets off.

    An alarm's number is that event's, negative, so that one that is told twice is kept once.
    """
    told: list[EgressEvent] = []
    for event in events:
        told.append(event)
        found = alarms.see(
            SandboxId(event.sandbox),
            event.time.timestamp(),
            denied=event.allowed is False,
            name=event.name,
            uploaded_bytes=event.sent_bytes or 0,
        )
        if found:
            why = "; ".join(f"{alarm.kind}: {alarm.why}" for alarm in found)
            logger().warning("egress_alarm", sandbox=event.sandbox, why=why)
            told.append(
                EgressEvent(
                    type="alarm", boot=event.boot, seq=-event.seq, time=event.time, sandbox=event.sandbox, why=why
                )
            )
    return told


async def _store(
    plane: Plane, worker: WorkerId, boot: str, events: Sequence[EgressEvent], kept: Counter[SandboxId]
) -> None:
    rows = [
        (SandboxId(event.sandbox), event.seq, event.time, event.model_dump(mode="json", exclude_defaults=True))
        for event in events
    ]
    async with plane.db.transaction() as tx:
        await egress_events.append(tx, worker, boot, rows)
    plane.egress_counts.update(_counted(event) for event in events)
    kept.update(SandboxId(event.sandbox) for event in events)
    for sandbox in [sandbox for sandbox, count in kept.items() if count >= TRIM_EVERY]:
        await egress_events.trim(plane.db, sandbox)
        del kept[sandbox]


def _counted(event: EgressEvent) -> str:
    """Return under what an event is counted in the figures."""
    if event.type == "verdict":
        return "allowed" if event.allowed else "denied"
    return event.type


async def forget_events(plane: Plane) -> None:
    """Remove old events, for ever."""
    while True:
        try:
            await egress_events.expire(plane.db)
        except Unavailable as error:
            logger().warning("egress_expiry_postponed", error=str(error))
        await asyncio.sleep(_EXPIRE_EVERY_S)


async def reseal(plane: Plane) -> None:
    """Seal anew, once, what is sealed with another master key than the newest."""
    while True:
        try:
            count = await secrets.reseal(plane)
            root = await authority.reseal(plane)
        except Unavailable:
            await asyncio.sleep(RETRY_S)
        except SpaceError as error:
            logger().error("reseal_failed", error=str(error))
            return
        else:
            if count or root:
                logger().info("resealed", secrets=count, root=root, key=plane.vault.key_id)
            return
