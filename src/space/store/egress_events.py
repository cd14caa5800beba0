"""What was decided about sandboxes' traffic, as gateways told it: append-only, bounded per sandbox and in time."""

import datetime
from collections.abc import Sequence

from space.model.egress import Document, EgressRecord
from space.model.ids import SandboxId, WorkerId
from space.store.db import Queries
from space.store.notices import Channel

KEEP = 10_000
"""Newest events that are kept of a sandbox; about as many more until the next trim."""

KEEP_DAYS = 7

_POSITION = "SELECT boot, seq FROM egress_positions WHERE worker = $1"
_MOVE = """
INSERT INTO egress_positions (worker, boot, seq) VALUES ($1, $2, $3)
ON CONFLICT (worker) DO UPDATE SET boot = excluded.boot, seq = excluded.seq
 WHERE egress_positions.boot <> excluded.boot OR egress_positions.seq < excluded.seq"""
# An event of a sandbox that has no row any more has nobody who could ask for it.
_APPEND = """
INSERT INTO egress_events (sandbox_id, boot, seq, at, event)
SELECT told.sandbox, $1, told.seq, told.at, told.event
  FROM unnest($2::text[], $3::bigint[], $4::timestamptz[], $5::jsonb[]) AS told (sandbox, seq, at, event)
  JOIN sandboxes ON sandboxes.id = told.sandbox
 ORDER BY abs(told.seq), told.seq DESC
ON CONFLICT (boot, seq) DO NOTHING
RETURNING sandbox_id"""
_TELL = "SELECT pg_notify($1, sandbox) FROM unnest($2::text[]) AS told (sandbox)"
_LIST = "SELECT id, at, event FROM egress_events WHERE sandbox_id = $1 AND id > $2 ORDER BY id LIMIT $3"
_LAST = "SELECT id, at, event FROM egress_events WHERE sandbox_id = $1 AND at > $2 ORDER BY id"
_TRIM = """
DELETE FROM egress_events
 WHERE sandbox_id = $1
   AND id <= (SELECT id FROM egress_events WHERE sandbox_id = $1 ORDER BY id DESC OFFSET $2 LIMIT 1)"""
_EXPIRE = "DELETE FROM egress_events WHERE at < now() - make_interval(days => $1)"


async def position(db: Queries, worker: WorkerId) -> tuple[str, int]:
    """Return up to which event of which gateway process a worker's events are stored; ("", 0) at the beginning."""
    row = await db.fetchrow(_POSITION, worker)
    return ("", 0) if row is None else (row["boot"], row["seq"])


async def append(
    tx: Queries,
    worker: WorkerId,
    boot: str,
    events: Sequence[tuple[SandboxId, int, datetime.datetime, Document]],
) -> set[SandboxId]:
    """Store events of one gateway process, (sandbox, seq, at, event); those that are known are skipped.

    A negative seq is of an event that was made here, from the one with that number. Listeners on Channel.EGRESS are
    told of the sandboxes that are returned.
    """
    columns = [list(column) for column in zip(*events, strict=True)]
    rows = await tx.fetch(_APPEND, boot, *columns)
    await tx.execute(_MOVE, worker, boot, max(seq for _, seq, _, _ in events))
    touched = {SandboxId(row["sandbox_id"]) for row in rows}
    await tx.execute(_TELL, Channel.EGRESS, sorted(touched))
    return touched


async def listed(db: Queries, sandbox: SandboxId, after: int, limit: int) -> list[EgressRecord]:
    """Return the events after number `after`, oldest first."""
    return [EgressRecord(row["id"], row["at"], row["event"]) for row in await db.fetch(_LIST, sandbox, after, limit)]


async def since(db: Queries, sandbox: SandboxId, at: datetime.datetime) -> list[EgressRecord]:
    """Return the events after a moment, oldest first."""
    return [EgressRecord(row["id"], row["at"], row["event"]) for row in await db.fetch(_LAST, sandbox, at)]


async def trim(db: Queries, sandbox: SandboxId) -> None:
    """Forget all but the newest KEEP of a sandbox."""
    await db.execute(_TRIM, sandbox, KEEP)


async def expire(db: Queries) -> None:
    """Forget what is older than KEEP_DAYS."""
    await db.execute(_EXPIRE, KEEP_DAYS)
