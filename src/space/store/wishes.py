"""What use cases and deadlines write into a sandbox's spec. Each write raises its generation."""

import dataclasses
import datetime
from collections.abc import Mapping

from space.model.convergence import PLAIN
from space.model.ids import OperationId, ProjectId, SandboxId
from space.model.operation import OperationKind
from space.model.sandbox import Deadlines, Desired, Sandbox
from space.store import operations
from space.store.db import Queries
from space.store.sandboxes import COLUMNS, FREE, TIMEOUT, UNSYNCED, Lease, sandbox_of, term

_HOLDS = f"($6::text IS NOT NULL AND {FREE})"


def _wish_sql(which: str, beside: str = "") -> str:
    """Return SQL that writes a wish into the row `which` says; `beside` is what else there is to select from."""
    # A timeout that has fired is spent; whoever asks for the sandbox after it gets the whole of it anew.
    return f"""
WITH wished AS (
    UPDATE sandboxes
       SET desired = $2, desired_reason = $3, suspend_memory = $4, generation = generation + 1, updated_at = now(),
           epoch = CASE WHEN {_HOLDS} THEN epoch + 1 ELSE epoch END,
           lease_owner = CASE WHEN {_HOLDS} THEN $6 ELSE lease_owner END,
           lease_until = CASE WHEN {_HOLDS} THEN now() + make_interval(secs => $7) ELSE lease_until END,
           last_active_at = clock.steady, idle_at = clock.steady + make_interval(secs => idle_timeout_s),
           expires_at = CASE WHEN desired_reason = '{TIMEOUT}' AND $2 <> 'suspended'
                             THEN clock.steady + {term("$3::text")} ELSE expires_at END
      FROM (SELECT coalesce($5::timestamptz, now()) AS steady) AS clock{beside}
     WHERE id = $1{which}
    RETURNING {COLUMNS}),
begun AS ({operations.begin_sql("wished", "$8::text", "$9")})
SELECT * FROM wished"""


_WISH = _wish_sql("")
# What model/convergence.py: PLAIN says. Whoever waits for the row while another writes it is compared with what that
# one has left, so that of two at once only the first finds it plain.
_WISH_PLAIN = _wish_sql(
    f""" AND project_id = $10 AND state = ANY($11::text[]) AND observed_generation >= generation
       AND desired <> 'deleted' AND {FREE}""",
    f", {UNSYNCED}",
)
_RAISE = f"""
UPDATE sandboxes SET generation = generation + 1, updated_at = now(),
       last_active_at = clock.steady, idle_at = clock.steady + make_interval(secs => idle_timeout_s)
  FROM (SELECT coalesce($2::timestamptz, now()) AS steady) AS clock
 WHERE id = $1 RETURNING {COLUMNS}"""
_ASK_DELETE = f"""
UPDATE sandboxes
   SET desired = 'deleted', desired_reason = $2, generation = generation + 1, epoch = epoch + 1, lease_owner = NULL,
       lease_until = NULL, updated_at = now()
 WHERE id = $1 RETURNING {COLUMNS}"""
# No state follows from these fields, so a status that answered the wish before answers it after. A deadline that fired
# first has written its wish; this one comes after it and finds a row that is to be deleted, or one that is suspended.
_CHANGE = f"""
UPDATE sandboxes
   SET labels = coalesce($2, labels), idle_timeout_s = $3::integer, timeout_s = $4::integer, on_timeout = $5,
       auto_resume = $6, timeout_restarts = $9, timeout_memory = $10, generation = generation + 1,
       observed_generation = CASE WHEN observed_generation = generation THEN generation + 1
                                  ELSE observed_generation END,
       last_active_at = clock.steady, idle_at = clock.steady + make_interval(secs => $3::integer),
       expires_at = CASE WHEN $9 AND (state IN ('creating', 'suspended', 'restoring')
                                      OR state = 'paused' AND desired = 'paused') THEN NULL
                         WHEN $7 THEN clock.steady + make_interval(secs => coalesce($11::integer, $4::integer))
                         ELSE expires_at END
  FROM (SELECT coalesce($8::timestamptz, now()) AS steady) AS clock
 WHERE id = $1 AND desired <> 'deleted' RETURNING {COLUMNS}"""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """New values of what may be changed; `labels` None leaves them.

    `rearmed`: the timeout counts from now; it is `deadlines.timeout_s` long, or this once `term_s`.
    """

    labels: Mapping[str, str] | None
    deadlines: Deadlines
    rearmed: bool
    term_s: int | None = None


async def wish(
    tx: Queries,
    sandbox: SandboxId,
    desired: Desired,
    *,
    reason: str | None = None,
    memory: bool = True,
    now: datetime.datetime | None = None,
    lease: Lease | None = None,
    begins: tuple[OperationId, OperationKind] | None = None,
) -> Sandbox:
    """Write a client's wish, which is activity at `now` by the steady clock; whoever reconciles goes on with it.

    Takes `lease` for its writer where nobody holds the row, which raises the epoch. `begins` is the operation for it.
    """
    owner, ttl_s = (lease.owner, lease.ttl_s) if lease else (None, None)
    ident, kind = begins or (None, None)
    row = await tx.fetchrow(_WISH, sandbox, desired, reason, memory, now, owner, ttl_s, ident, kind)
    assert row is not None
    return sandbox_of(row)


async def wish_plain(
    db: Queries,
    project: ProjectId,
    sandbox: SandboxId,
    desired: Desired,
    *,
    reason: str | None,
    memory: bool,
    now: datetime.datetime,
    lease: Lease,
    begins: tuple[OperationId, OperationKind],
) -> Sandbox | None:
    """Do what `wish` does where that is plain for the kind it begins and the lease is free; None where it is not.

    It is a transaction of its own, and not synced.
    """
    ident, kind = begins
    row = await db.fetchrow(
        _WISH_PLAIN, sandbox, desired, reason, memory, now, lease.owner, lease.ttl_s, ident, kind, project,
        [str(state) for state in PLAIN[kind]],
    )  # fmt: skip
    return None if row is None else sandbox_of(row)


async def raise_generation(tx: Queries, sandbox: SandboxId, now: datetime.datetime | None = None) -> Sandbox:
    """Let the row lag, so that what its operations ask for is done."""
    row = await tx.fetchrow(_RAISE, sandbox, now)
    assert row is not None
    return sandbox_of(row)


async def ask_delete(tx: Queries, sandbox: SandboxId, reason: str | None = None) -> Sandbox:
    """Write the wish that it be gone. Whoever reconciles it is overtaken: a delete does not wait for a boot."""
    row = await tx.fetchrow(_ASK_DELETE, sandbox, reason)
    assert row is not None
    return sandbox_of(row)


async def change(
    tx: Queries, sandbox: SandboxId, change: Change, now: datetime.datetime | None = None
) -> Sandbox | None:
    """Write labels and deadlines; None where it is to be deleted."""
    d = change.deadlines
    row = await tx.fetchrow(
        _CHANGE, sandbox, None if change.labels is None else dict(change.labels), d.idle_timeout_s, d.timeout_s,
        d.on_timeout, d.auto_resume, change.rearmed, now, d.timeout_restarts, d.timeout_memory,
        change.term_s,
    )  # fmt: skip
    return None if row is None else sandbox_of(row)
