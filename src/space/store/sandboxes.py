"""Sandboxes: the wish, the status, and the lease of whoever reconciles them.

Every write of status is guarded by what its writer read: the epoch, which each lease and each new wish raises, and the
state. A write that finds no such row raises Stale; its writer reads again or leaves it to the one who overtook it.
"""

import dataclasses
import datetime
from collections.abc import Collection, Mapping

from space.model import lifecycle
from space.model.errors import Stale
from space.model.ids import ProjectId, SandboxId, TemplateDigest, WorkerId
from space.model.lifecycle import Event, State
from space.model.sandbox import Desired, Sandbox, SandboxSpec
from space.store import events
from space.store.db import Queries, Record

_COLUMNS = """
id, project_id, template, template_name, vcpus, memory_mib, env, labels, agent_token, desired, generation, state,
observed_generation, reason, worker, epoch, timings_ms, created_at, updated_at, started_at, last_event"""
_INSERT = f"""
INSERT INTO sandboxes (id, project_id, template, template_name, vcpus, memory_mib, env, labels, agent_token, worker,
                       lease_owner, lease_until, epoch, last_event)
SELECT $1, $2, digest, $4, $5, $6, $7, $8, $9, $10,
       $11, CASE WHEN $11::text IS NOT NULL THEN now() + make_interval(secs => $12) END, 1, 1
  FROM templates WHERE project_id = $2 AND digest = $3
RETURNING {_COLUMNS}"""
_GET = f"SELECT {_COLUMNS} FROM sandboxes WHERE id = $1"
_GET_FOR_UPDATE = f"SELECT {_COLUMNS} FROM sandboxes WHERE project_id = $1 AND id = $2 FOR UPDATE"
_LIST = f"""
SELECT {_COLUMNS} FROM sandboxes
 WHERE project_id = $1 AND state = ANY($2::text[]) AND labels @> $3
   AND ($4::timestamptz IS NULL OR (created_at, id) < ($4, $5))
 ORDER BY created_at DESC, id DESC LIMIT $6"""
_ASK_DELETE = f"""
UPDATE sandboxes
   SET desired = 'deleted', generation = generation + 1, epoch = epoch + 1, lease_owner = NULL, lease_until = NULL,
       updated_at = now()
 WHERE id = $1 RETURNING {_COLUMNS}"""
_ABANDON = f"""
UPDATE sandboxes
   SET desired = 'deleted', generation = generation + 1, epoch = epoch + 1, reason = $2, updated_at = now()
 WHERE id = $1 AND state = 'creating' AND desired = 'running' AND (lease_until IS NULL OR lease_until < now())
   AND created_at <= now() - make_interval(secs => $3)
RETURNING {_COLUMNS}"""
_ACQUIRE = f"""
UPDATE sandboxes SET lease_owner = $2, lease_until = now() + make_interval(secs => $3), epoch = epoch + 1
 WHERE id = $1 AND (lease_until IS NULL OR lease_until < now())
   AND (observed_generation < generation OR state IN ('creating', 'deleting'))
RETURNING {_COLUMNS}"""
_RENEW = """
UPDATE sandboxes SET lease_until = now() + make_interval(secs => $3)
  FROM unnest($1::text[], $2::bigint[]) AS held (id, epoch)
 WHERE sandboxes.id = held.id AND sandboxes.epoch = held.epoch AND lease_owner IS NOT NULL"""
_RELEASE = "UPDATE sandboxes SET lease_owner = NULL, lease_until = NULL WHERE id = $1 AND epoch = $2"
_PLACE = f"UPDATE sandboxes SET worker = $3 WHERE id = $1 AND epoch = $2 AND worker IS NULL RETURNING {_COLUMNS}"
# A deleted row keeps no secret of its guest.
_MOVE = f"""
UPDATE sandboxes
   SET state = $4, reason = $5, observed_generation = $6, timings_ms = coalesce($7, timings_ms), updated_at = now(),
       last_event = last_event + 1,
       started_at = CASE WHEN $4 = 'running' THEN coalesce(started_at, now()) ELSE started_at END,
       env = CASE WHEN $4 = 'deleted' THEN '{{}}'::jsonb ELSE env END,
       agent_token = CASE WHEN $4 = 'deleted' THEN '' ELSE agent_token END,
       lease_owner = CASE WHEN $4 = 'deleting' THEN lease_owner END,
       lease_until = CASE WHEN $4 = 'deleting' THEN lease_until END
 WHERE id = $1 AND epoch = $2 AND state = $3
RETURNING {_COLUMNS}"""
_LAGGING = """
SELECT id FROM sandboxes
 WHERE (observed_generation < generation OR state IN ('creating', 'deleting'))
   AND (lease_until IS NULL OR lease_until < now())
 ORDER BY updated_at LIMIT $1"""
_ON_WORKER = f"SELECT {_COLUMNS} FROM sandboxes WHERE worker = $1 AND state IN ('running', 'paused')"
_BY_IDS = f"SELECT {_COLUMNS} FROM sandboxes WHERE id = ANY($1::text[])"
_COUNT = "SELECT state, count(*) AS count FROM sandboxes WHERE state <> 'deleted' GROUP BY state"
_PURGE = "DELETE FROM sandboxes WHERE state = 'deleted' AND updated_at < now() - make_interval(days => $1)"


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """Who may reconcile a row: `owner` names the process, `ttl_s` how long it holds unless renewed."""

    owner: str
    ttl_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list: at most `limit` rows, after the row (created_at, id) in newest-first order."""

    limit: int
    after: tuple[datetime.datetime, str] | None = None


def _sandbox(row: Record) -> Sandbox:
    return Sandbox(
        id=SandboxId(row["id"]),
        project=ProjectId(row["project_id"]),
        spec=SandboxSpec(
            template=TemplateDigest(row["template"]),
            template_name=row["template_name"],
            vcpus=row["vcpus"],
            memory_mib=row["memory_mib"],
            env=row["env"],
            labels=row["labels"],
            agent_token=row["agent_token"],
            desired=Desired(row["desired"]),
        ),
        generation=row["generation"],
        state=State(row["state"]),
        observed_generation=row["observed_generation"],
        reason=row["reason"],
        worker=None if row["worker"] is None else WorkerId(row["worker"]),
        epoch=row["epoch"],
        timings_ms=row["timings_ms"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        started_at=row["started_at"],
    )


async def insert(
    tx: Queries,
    sandbox: SandboxId,
    project: ProjectId,
    spec: SandboxSpec,
    worker: WorkerId | None,
    lease: Lease | None,
) -> Sandbox | None:
    """Record a wish in state `creating`, held under `lease` if given; None where the template is gone."""
    row = await tx.fetchrow(
        _INSERT, sandbox, project, spec.template, spec.template_name, spec.vcpus, spec.memory_mib, dict(spec.env),
        dict(spec.labels), spec.agent_token, worker, lease and lease.owner, lease and lease.ttl_s,
    )  # fmt: skip
    if row is None:
        return None
    await events.append(tx, sandbox, 1, "created", None, State.CREATING, None)
    return _sandbox(row)


async def get(db: Queries, sandbox: SandboxId) -> Sandbox | None:
    """Return one of any project; callers compare the project themselves."""
    row = await db.fetchrow(_GET, sandbox)
    return None if row is None else _sandbox(row)


async def listed(
    db: Queries, project: ProjectId, states: Collection[State], labels: Mapping[str, str], page: Page
) -> list[Sandbox]:
    """Return the project's sandboxes in these states that carry all these labels, newest first."""
    at, last = page.after or (None, None)
    rows = await db.fetch(_LIST, project, [str(state) for state in states], dict(labels), at, last, page.limit)
    return [_sandbox(row) for row in rows]


async def lock(tx: Queries, project: ProjectId, sandbox: SandboxId) -> Sandbox | None:
    """Return one of the project's, its row locked until the transaction ends."""
    row = await tx.fetchrow(_GET_FOR_UPDATE, project, sandbox)
    return None if row is None else _sandbox(row)


async def ask_delete(tx: Queries, sandbox: SandboxId) -> Sandbox:
    """Write the wish that it be gone. Whoever reconciles it is overtaken: a delete does not wait for a boot."""
    row = await tx.fetchrow(_ASK_DELETE, sandbox)
    assert row is not None
    return _sandbox(row)


async def abandon(tx: Queries, sandbox: SandboxId, reason: str, min_age_s: float) -> bool:
    """Give up a create that nobody is working on; False where somebody is, or it is past that or younger."""
    return await tx.fetchrow(_ABANDON, sandbox, reason, min_age_s) is not None


async def acquire(db: Queries, sandbox: SandboxId, lease: Lease) -> Sandbox | None:
    """Take the lease of a row whose status lags; None where it is held, settled or unknown. Raises the epoch."""
    row = await db.fetchrow(_ACQUIRE, sandbox, lease.owner, lease.ttl_s)
    return None if row is None else _sandbox(row)


async def renew(db: Queries, held: Mapping[SandboxId, int], ttl_s: float) -> None:
    """Hold these leases (sandbox to epoch) for `ttl_s` more; one that was overtaken stays so."""
    await db.execute(_RENEW, list(held), list(held.values()), ttl_s)


async def release(db: Queries, sandbox: Sandbox) -> None:
    """Give the lease back; nothing happens where it was overtaken."""
    await db.execute(_RELEASE, sandbox.id, sandbox.epoch)


async def place(db: Queries, sandbox: Sandbox, worker: WorkerId) -> Sandbox:
    """Record the worker that shall run it; it never changes afterwards. Raises Stale."""
    return _fresh(await db.fetchrow(_PLACE, sandbox.id, sandbox.epoch, worker), sandbox)


async def move(
    tx: Queries,
    sandbox: Sandbox,
    event: Event,
    *,
    reason: str | None = None,
    timings_ms: Mapping[str, float] | None = None,
) -> Sandbox:
    """Let `event` happen to the row that was read as `sandbox`, and record it. Run it in a transaction.

    The status then answers the generation that was read, except while there is more to do. Raises Stale where the row
    has changed since, IllegalTransition where the event cannot happen.
    """
    state = lifecycle.advance(sandbox.state, event)
    observed = sandbox.observed_generation if state is State.DELETING else sandbox.generation
    timings = None if timings_ms is None else dict(timings_ms)
    row = await tx.fetchrow(_MOVE, sandbox.id, sandbox.epoch, sandbox.state, state, reason, observed, timings)
    moved = _fresh(row, sandbox)
    assert row is not None
    await events.append(tx, sandbox.id, row["last_event"], event, sandbox.state, state, reason)
    return moved


def _fresh(row: Record | None, sandbox: Sandbox) -> Sandbox:
    if row is None:
        raise Stale(f"Sandbox {sandbox.id} has changed meanwhile; read it again.")
    return _sandbox(row)


async def lagging(db: Queries, limit: int) -> list[SandboxId]:
    """Return sandboxes whose status lags behind the wish and that nobody holds, longest untouched first."""
    return [SandboxId(row["id"]) for row in await db.fetch(_LAGGING, limit)]


async def on_worker(db: Queries, worker: WorkerId) -> list[Sandbox]:
    """Return the sandboxes of which we believe that this worker runs a VM."""
    return [_sandbox(row) for row in await db.fetch(_ON_WORKER, worker)]


async def by_ids(db: Queries, ids: Collection[SandboxId]) -> dict[SandboxId, Sandbox]:
    """Return those of these sandboxes that have a row."""
    found = (_sandbox(row) for row in await db.fetch(_BY_IDS, list(ids)))
    return {sandbox.id: sandbox for sandbox in found}


async def count(db: Queries) -> dict[str, int]:
    """Return the number of sandboxes by state, deleted ones left out."""
    return {row["state"]: row["count"] for row in await db.fetch(_COUNT)}


async def purge(db: Queries, days: int) -> None:
    """Forget sandboxes deleted more than `days` ago, with their events and operations."""
    await db.execute(_PURGE, days)
