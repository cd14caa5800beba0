"""Deadlines that have come: which rows, and the wishes they write.

Every time here is by the steady clock and comes from the caller, who has just compared it (control/clock.py). Rows that
somebody has locked are left for the next round, so that several processes can do this at once.
"""

import datetime
from collections.abc import Mapping

from space.model.ids import SandboxId
from space.model.sandbox import Sandbox
from space.store.db import Queries
from space.store.sandboxes import COLUMNS, RETRY_S, TIMEOUT, sandbox_of

CLAIM_S = 15
"""How long the one who looks into an idle sandbox has for it."""

# Locked in one order, so that two processes that write the same rows never wait for each other in a circle.
_TOUCH = """
WITH told AS (
    SELECT s.id, a.at FROM sandboxes s JOIN unnest($1::text[], $2::timestamptz[]) AS a (id, at) ON a.id = s.id
     WHERE s.last_active_at < a.at AND s.state <> 'deleted' ORDER BY s.id FOR UPDATE OF s)
UPDATE sandboxes SET last_active_at = told.at, idle_at = told.at + make_interval(secs => idle_timeout_s)
  FROM told WHERE sandboxes.id = told.id"""
_CLAIM = f"""
WITH due AS (
    SELECT id AS found FROM sandboxes
     WHERE state IN ('running', 'paused') AND desired IN ('running', 'paused') AND idle_at <= $1
     ORDER BY idle_at LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE sandboxes SET idle_at = $3::timestamptz + make_interval(secs => {CLAIM_S}) FROM due WHERE id = found
RETURNING {COLUMNS}"""
_SUSPEND_IDLE = """
UPDATE sandboxes
   SET desired = 'suspended', desired_reason = $4, suspend_memory = true, generation = generation + 1,
       updated_at = now()
 WHERE id = $1 AND generation = $2 AND last_active_at = $3 AND state IN ('running', 'paused') RETURNING id"""
_EXPIRE = f"""
WITH due AS (
    SELECT id AS found FROM sandboxes WHERE expires_at <= $1 AND expires_at IS NOT NULL AND desired <> 'deleted'
     ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE sandboxes
   SET desired = CASE WHEN on_timeout = 'delete' THEN 'deleted' ELSE 'suspended' END,
       desired_reason = '{TIMEOUT}', suspend_memory = timeout_memory, generation = generation + 1, updated_at = now(),
       expires_at = $1::timestamptz + make_interval(secs => {RETRY_S}),
       epoch = CASE WHEN on_timeout = 'delete' THEN epoch + 1 ELSE epoch END,
       lease_owner = CASE WHEN on_timeout = 'delete' THEN NULL ELSE lease_owner END,
       lease_until = CASE WHEN on_timeout = 'delete' THEN NULL ELSE lease_until END
  FROM due
 WHERE id = found AND (on_timeout = 'delete' OR NOT (state IN ('suspended', 'failed') OR desired = 'suspended'))
RETURNING id"""
_SPEND = """
UPDATE sandboxes SET expires_at = NULL
 WHERE expires_at <= $1 AND expires_at IS NOT NULL AND on_timeout = 'suspend' AND desired <> 'deleted'
   AND (state IN ('suspended', 'failed') OR desired = 'suspended')"""


async def touch(db: Queries, active: Mapping[SandboxId, datetime.datetime]) -> None:
    """Record when sandboxes were last used; a later time that is recorded already stays."""
    await db.execute(_TOUCH, list(active), list(active.values()))


async def claim_idle(db: Queries, before: datetime.datetime, now: datetime.datetime, limit: int) -> list[Sandbox]:
    """Return rows whose idle time ended at `before`, for the caller to look into; others see them CLAIM_S later."""
    return [sandbox_of(row) for row in await db.fetch(_CLAIM, before, limit, now)]


async def suspend_idle(db: Queries, sandbox: Sandbox, reason: str) -> bool:
    """Wish an idle one suspended; False where it has been used or changed since it was read as `sandbox`."""
    row = await db.fetchrow(_SUSPEND_IDLE, sandbox.id, sandbox.generation, sandbox.last_active_at, reason)
    return row is not None


async def expire(db: Queries, now: datetime.datetime, limit: int) -> list[SandboxId]:
    """Write the wish of every timeout that has come, at most `limit`; returns the rows.

    A deadline that was moved meanwhile does not fire: the row is read again under its lock. One that comes while the
    sandbox is suspended already is spent.
    """
    fired = [SandboxId(row["id"]) for row in await db.fetch(_EXPIRE, now, limit)]
    await db.execute(_SPEND, now)
    return fired
