"""Use cases on what was decided about a sandbox's traffic: read it, follow it, answer requests that wait."""

import asyncio
import contextlib
import dataclasses
import datetime
from collections.abc import AsyncGenerator

from space.control.plane import Plane
from space.model.egress import EgressRecord
from space.model.errors import Conflict, NotFound
from space.model.ids import ProjectId, SandboxId
from space.model.policy_document import MAX_ASK_S
from space.store import egress_events, sandboxes
from space.store.notices import RECHECK_S, Channel
from space.wire.gateway import AskAnswer, EgressEvent

PAGE = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A request that waits: the gateway's event about it, and until when."""

    event: EgressEvent
    until: datetime.datetime


async def listed(plane: Plane, project: ProjectId, sandbox: SandboxId, after: int, limit: int) -> list[EgressRecord]:
    """Return what was decided after event `after`, oldest first; of a deleted sandbox too. Raises NotFound."""
    await _check(plane, project, sandbox)
    return await egress_events.listed(plane.db, sandbox, after, limit)


async def followed(
    plane: Plane, project: ProjectId, sandbox: SandboxId, after: int, quiet_s: float
) -> AsyncGenerator[list[EgressRecord]]:
    """Yield what was decided, page by page, then what comes; an empty page after `quiet_s` seconds of nothing.

    Raises NotFound before the first page.
    """
    await _check(plane, project, sandbox)
    clock = asyncio.get_running_loop().time
    told_at = clock()
    with plane.notices.changes(Channel.EGRESS, sandbox) as changed:
        while True:
            changed.clear()
            page = await egress_events.listed(plane.db, sandbox, after, PAGE)
            if page or clock() - told_at >= quiet_s:
                yield page
                told_at = clock()
            if page:
                after = page[-1].number
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S):
                    await changed.wait()


async def held(plane: Plane, project: ProjectId, sandbox: SandboxId) -> list[Held]:
    """Return the requests that wait for an answer, oldest first. Raises NotFound."""
    await _check(plane, project, sandbox)
    now = datetime.datetime.now(datetime.UTC)
    recent = await egress_events.since(plane.db, sandbox, now - datetime.timedelta(seconds=MAX_ASK_S))
    events = [EgressEvent.model_validate(record.event) for record in recent]
    over = {(event.boot, event.of) for event in events if event.type == "verdict" and event.of is not None}
    waiting = [
        Held(event, event.time + datetime.timedelta(seconds=event.wait_s or 0))
        for event in events
        if event.type == "ask" and (event.boot, event.seq) not in over
    ]
    return [one for one in waiting if one.until > now]


async def answer(plane: Plane, project: ProjectId, sandbox: SandboxId, ask: int, *, allow: bool) -> None:
    """Let a held request go, or refuse it; raises NotFound when it does not wait any more."""
    row = await sandboxes.get(plane.db, sandbox)
    if row is None or row.project != project:
        raise NotFound(f"There is no sandbox {sandbox}.")
    if row.worker is None:
        raise Conflict(f"Sandbox {sandbox} does not run.")
    await plane.workers.client(row.worker).answer_ask(sandbox, ask, AskAnswer(allow=allow))


async def _check(plane: Plane, project: ProjectId, sandbox: SandboxId) -> None:
    found = await sandboxes.get(plane.db, sandbox)
    if found is None or found.project != project:
        raise NotFound(f"There is no sandbox {sandbox}.")
