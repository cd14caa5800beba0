"""Sandboxes: the wish, the status, and the lease of whoever reconciles them.

Every write of status is guarded by what its writer read: the epoch, which each lease and each new wish raises, and the
state. A write that finds no such row raises Stale; its writer reads again or leaves it to the one who overtook it.
"""

import dataclasses
import datetime
from collections.abc import Collection, Mapping

from space.model import convergence, lifecycle
from space.model.errors import Stale
from space.model.ids import ProjectId, SandboxId, TemplateDigest, WorkerId
from space.model.lifecycle import Event, State
from space.model.sandbox import MIN_WOKEN_S, Deadlines, Desired, OnTimeout, Sandbox, SandboxSpec
from space.model.sandbox_query import SandboxQuery
from space.model.volume import Mount
from space.store import events, operations
from space.store.db import Queries, Record
from space.store.operations import NONE_ENDS, Ending

TIMEOUT = "timeout"
"""Why a sandbox is put away at its deadline."""

WOKEN = "woken by a request"
"""Why a sandbox runs again that nobody's call resumed."""

RETRY_S = 60
"""A suspension at a deadline that failed is tried again after this long."""


def term(reason: str) -> str:
    """Return SQL for how long a timeout is that begins now, for the reason that the SQL `reason` says."""
    return f"""make_interval(secs =>
        CASE WHEN timeout_restarts AND {reason} = '{WOKEN}' AND timeout_s < {MIN_WOKEN_S} THEN {MIN_WOKEN_S}
             ELSE timeout_s END)"""


COLUMNS = """
id, project_id, template, template_name, vcpus, memory_mib, env, labels, agent_token, parent, idle_timeout_s, timeout_s,
on_timeout, auto_resume, timeout_restarts, timeout_memory, public_ports, mask_host, e2b, volumes, desired,
desired_reason, suspend_memory, generation, state, observed_generation, reason, worker,
 epoch, timings_ms, created_at, updated_at, started_at, last_active_at, idle_at, expires_at, durable_at,
last_event"""
_LAGS = """
(observed_generation < generation OR state IN ('creating', 'suspending', 'restoring', 'deleting'))"""
# No lease is given for minutes: one that seems to be was given before the wall clock was set back.
FREE = "(lease_until IS NULL OR lease_until < now() OR lease_until > now() + interval '5 minutes')"
_INSERT = f"""
WITH made AS (
    INSERT INTO sandboxes (id, project_id, template, template_name, vcpus, memory_mib, env, labels, agent_token, worker,
                           lease_owner, lease_until, parent, idle_timeout_s, timeout_s, on_timeout, auto_resume,
                           timeout_restarts, timeout_memory, public_ports, mask_host, e2b, volumes,
                           last_active_at, idle_at, expires_at, epoch, last_event)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10,
           $11, CASE WHEN $11::text IS NOT NULL THEN now() + make_interval(secs => $12) END,
           $13, $14::integer, $15::integer, $16, $17, $19::boolean, $20, $21, $22, $23, $24, clock.steady,
           clock.steady + make_interval(secs => $14::integer),
           CASE WHEN NOT $19::boolean THEN clock.steady + make_interval(secs => $15::integer) END, 1, 1
      FROM (SELECT coalesce($18::timestamptz, now()) AS steady) AS clock
     WHERE $13::text IS NOT NULL OR EXISTS (
        SELECT 1 FROM templates t
         WHERE t.digest = $3 AND (t.project_id = $2 OR EXISTS (
            SELECT 1 FROM template_names n LEFT JOIN template_tags g ON g.project_id = n.project_id AND g.name = n.name
             WHERE n.project_id = t.project_id AND n.public AND $3 IN (n.digest, g.digest))))
    RETURNING {COLUMNS}),
told AS ({events.append_sql("made", "'created'", "NULL", "NULL")})
SELECT * FROM made"""
_GET = f"SELECT {COLUMNS} FROM sandboxes WHERE id = $1"
_GET_FOR_UPDATE = f"SELECT {COLUMNS} FROM sandboxes WHERE project_id = $1 AND id = $2 FOR UPDATE"
_MEANT = """
project_id = $1 AND state = ANY($2::text[]) AND labels @> $3 AND ($4::timestamptz IS NULL OR created_at >= $4)
   AND ($5::text IS NULL OR template = $5 OR template_name = $6)"""
_LIST = f"""
SELECT {COLUMNS} FROM sandboxes
 WHERE {_MEANT} AND ($8::timestamptz IS NULL OR (created_at, id) < ($8, $9))
 ORDER BY created_at DESC, id DESC LIMIT $7"""
_LIST_OLDEST = f"""
SELECT {COLUMNS} FROM sandboxes
 WHERE {_MEANT} AND ($8::timestamptz IS NULL OR (created_at, id) > ($8, $9))
 ORDER BY created_at, id LIMIT $7"""
_HOW_MANY = f"SELECT count(*) AS count FROM sandboxes WHERE {_MEANT}"
_ABANDON = f"""
WITH given_up AS (
    UPDATE sandboxes
       SET desired = 'deleted', generation = generation + 1, epoch = epoch + 1, reason = $2, updated_at = now()
     WHERE id = $1 AND state = 'creating' AND desired <> 'deleted' AND {FREE}
       AND created_at <= now() - make_interval(secs => $3)
    RETURNING {COLUMNS}),
ended AS ({operations.ending_sql("given_up", "given_up.generation", 4)})
SELECT * FROM given_up"""
# A lease need not survive the database's loss of power: nobody holds one then. What comes of it is synced, and it with
# that. The setting holds for the transaction, which is the statement's own.
UNSYNCED = "(SELECT set_config('synchronous_commit', 'off', true)) AS unsynced"
_ACQUIRE = f"""
UPDATE sandboxes SET lease_owner = $2, lease_until = now() + make_interval(secs => $3), epoch = epoch + 1
  FROM {UNSYNCED}
 WHERE id = $1 AND {FREE} AND {_LAGS}
RETURNING {COLUMNS}"""
_RENEW = f"""
UPDATE sandboxes SET lease_until = now() + make_interval(secs => $3)
  FROM unnest($1::text[], $2::bigint[]) AS held (id, epoch), {UNSYNCED}
 WHERE sandboxes.id = held.id AND sandboxes.epoch = held.epoch AND lease_owner IS NOT NULL"""
_RELEASE = f"""
UPDATE sandboxes SET lease_owner = NULL, lease_until = NULL FROM {UNSYNCED} WHERE id = $1 AND epoch = $2"""
_PLACE = f"UPDATE sandboxes SET worker = $3 WHERE id = $1 AND epoch = $2 AND worker IS NULL RETURNING {COLUMNS}"
# A snapshot that was asked shows in no status, so none answers it before it has been taken. The lease is given back
# where the status then answers the wish that the row has by now. A deleted row keeps no secret of its guest.
# Idle time counts from a start; so does a timeout whose last end has been spent on a suspension.
_MOVE = f"""
WITH moved AS (
    UPDATE sandboxes
       SET state = $4, reason = $5, observed_generation = clock.observed, timings_ms = coalesce($7, timings_ms),
           updated_at = now(), last_event = last_event + 1,
           desired = CASE WHEN generation = $8 THEN coalesce($9, desired) ELSE desired END,
           started_at = CASE WHEN $4 = 'running' THEN coalesce(started_at, now()) ELSE started_at END,
           durable_at = CASE WHEN $4 = 'suspending' THEN NULL ELSE durable_at END,
           env = CASE WHEN $4 = 'deleted' THEN '{{}}'::jsonb ELSE env END,
           agent_token = CASE WHEN $4 = 'deleted' THEN '' ELSE agent_token END,
           lease_owner = CASE WHEN clock.observed < generation THEN lease_owner END,
           lease_until = CASE WHEN clock.observed < generation THEN lease_until END,
           last_active_at = CASE WHEN $10 IN ('started', 'restored') THEN clock.steady ELSE last_active_at END,
           idle_at = CASE WHEN idle_timeout_s IS NULL THEN NULL
                          WHEN $10 IN ('started', 'restored') THEN clock.steady + make_interval(secs => idle_timeout_s)
                          WHEN $10 = 'suspend_failed' THEN clock.steady + make_interval(secs => {RETRY_S})
                          ELSE idle_at END,
           expires_at = CASE WHEN $10 = 'suspended' AND (timeout_restarts OR desired_reason = '{TIMEOUT}') THEN NULL
                             WHEN $10 = 'paused' AND timeout_restarts AND desired = 'paused' THEN NULL
                             WHEN $10 = 'restored' OR timeout_restarts AND $10 IN ('started', 'resumed')
                                 THEN coalesce(expires_at, clock.steady + {term("desired_reason")})
                             ELSE expires_at END
      FROM (SELECT coalesce($11::timestamptz, now()) AS steady,
                   least($6::bigint, {operations.before_asked_sql("$1", "$13")}) AS observed) AS clock
     WHERE id = $1 AND epoch = $2 AND state = $3
    RETURNING {COLUMNS}),
told AS ({events.append_sql("moved", "$10", "$3", "$5")}),
ended AS ({operations.ending_sql("moved", "$8", 12)})
SELECT * FROM moved"""
_ANSWER = f"""
WITH answered AS (
    UPDATE sandboxes
       SET observed_generation = answers.observed, updated_at = now(), reason = $6,
           desired = CASE WHEN generation = $4 THEN coalesce($5, desired) ELSE desired END,
           lease_owner = CASE WHEN answers.observed < generation THEN lease_owner END,
           lease_until = CASE WHEN answers.observed < generation THEN lease_until END
      FROM (SELECT least($4::bigint, {operations.before_asked_sql("$1", "$8")}) AS observed) AS answers
     WHERE id = $1 AND epoch = $2 AND state = $3
    RETURNING {COLUMNS}),
ended AS ({operations.ending_sql("answered", "$4", 7)})
SELECT * FROM answered"""
_DURABLE = """
UPDATE sandboxes SET durable_at = now(), durable_generation = $2 WHERE id = $1 AND durable_generation < $2"""
_LAGGING = f"SELECT id FROM sandboxes WHERE {_LAGS} AND {FREE} ORDER BY updated_at LIMIT $1"
_ON_WORKER = f"SELECT {COLUMNS} FROM sandboxes WHERE worker = $1 AND state IN ('running', 'paused', 'suspended')"
_BY_IDS = f"SELECT {COLUMNS} FROM sandboxes WHERE id = ANY($1::text[])"
_TOKENS = """
SELECT id, agent_token FROM sandboxes
 WHERE state IN ('running', 'paused', 'suspending', 'suspended', 'restoring') AND desired <> 'deleted'"""
_AGE = "SELECT extract(epoch FROM now() - updated_at)::double precision AS age_s FROM sandboxes WHERE id = $1"
_COUNT = "SELECT state, count(*) AS count FROM sandboxes WHERE state <> 'deleted' GROUP BY state"
_PURGE = "DELETE FROM sandboxes WHERE state = 'deleted' AND updated_at < now() - make_interval(days => $1)"


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """Who may reconcile a row: `owner` names the process, `ttl_s` how long it holds unless renewed."""

    owner: str
    ttl_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list: at most `limit` rows, after the row (created_at, id) in the list's order."""

    limit: int
    after: tuple[datetime.datetime, str] | None = None


def sandbox_of(row: Record) -> Sandbox:
    """Return the model object of a row with COLUMNS."""
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
            deadlines=Deadlines(
                idle_timeout_s=row["idle_timeout_s"],
                timeout_s=row["timeout_s"],
                on_timeout=OnTimeout(row["on_timeout"]),
                auto_resume=row["auto_resume"],
                timeout_restarts=row["timeout_restarts"],
                timeout_memory=row["timeout_memory"],
            ),
            parent=None if row["parent"] is None else SandboxId(row["parent"]),
            desired=Desired(row["desired"]),
            desired_reason=row["desired_reason"],
            suspend_memory=row["suspend_memory"],
            public_ports=row["public_ports"],
            mask_host=row["mask_host"],
            e2b=row["e2b"],
            volumes=tuple(Mount(**mount) for mount in row["volumes"]),
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
        last_active_at=row["last_active_at"],
        idle_at=row["idle_at"],
        expires_at=row["expires_at"],
        durable_at=row["durable_at"],
    )


async def insert(
    tx: Queries,
    sandbox: SandboxId,
    project: ProjectId,
    spec: SandboxSpec,
    worker: WorkerId | None,
    lease: Lease | None,
    now: datetime.datetime | None = None,
) -> Sandbox | None:
    """Record a wish in state `creating`, held under `lease` if given; None where the template is gone.

    A fork needs no template. Deadlines count from `now` by the steady clock; None takes the database's.
    """
    row = await tx.fetchrow(
        _INSERT, sandbox, project, spec.template, spec.template_name, spec.vcpus, spec.memory_mib, dict(spec.env),
        dict(spec.labels), spec.agent_token, worker, lease and lease.owner, lease and lease.ttl_s, spec.parent,
        spec.deadlines.idle_timeout_s, spec.deadlines.timeout_s, spec.deadlines.on_timeout, spec.deadlines.auto_resume,
        now, spec.deadlines.timeout_restarts, spec.deadlines.timeout_memory, spec.public_ports, spec.mask_host,
        None if spec.e2b is None else dict(spec.e2b), [dataclasses.asdict(mount) for mount in spec.volumes],
    )  # fmt: skip
    return None if row is None else sandbox_of(row)


async def get(db: Queries, sandbox: SandboxId) -> Sandbox | None:
    """Return one of any project; callers compare the project themselves."""
    row = await db.fetchrow(_GET, sandbox)
    return None if row is None else sandbox_of(row)


async def live_tokens(db: Queries) -> list[tuple[SandboxId, str]]:
    """Return the token of each sandbox that can be reached, or woken, of all projects."""
    return [(SandboxId(row["id"]), row["agent_token"]) for row in await db.fetch(_TOKENS)]


async def listed(db: Queries, project: ProjectId, query: SandboxQuery, page: Page) -> list[Sandbox]:
    """Return a part of the project's sandboxes that are meant, in the query's order."""
    at, last = page.after or (None, None)
    statement = _LIST_OLDEST if query.oldest_first else _LIST
    return [sandbox_of(row) for row in await db.fetch(statement, *_meant(project, query), page.limit, at, last)]


async def how_many(db: Queries, project: ProjectId, query: SandboxQuery) -> int:
    """Return how many of the project's sandboxes are meant."""
    row = await db.fetchrow(_HOW_MANY, *_meant(project, query))
    assert row is not None
    return int(row["count"])


def _meant(project: ProjectId, query: SandboxQuery) -> tuple[object, ...]:
    digest, name = query.template or (None, None)
    return project, [str(state) for state in query.states], dict(query.labels), query.since, digest, name


async def lock(tx: Queries, project: ProjectId, sandbox: SandboxId) -> Sandbox | None:
    """Return one of the project's, its row locked until the transaction ends."""
    row = await tx.fetchrow(_GET_FOR_UPDATE, project, sandbox)
    return None if row is None else sandbox_of(row)


async def abandon(
    tx: Queries, sandbox: SandboxId, reason: str, min_age_s: float, ending: Ending = NONE_ENDS
) -> Sandbox | None:
    """Give up a create that nobody is working on; None where somebody is, or it is past that or younger."""
    row = await tx.fetchrow(_ABANDON, sandbox, reason, min_age_s, *ending.arguments())
    return None if row is None else sandbox_of(row)


async def acquire(db: Queries, sandbox: SandboxId, lease: Lease) -> Sandbox | None:
    """Take the lease of a row whose status lags; None where it is held, settled or unknown. Raises the epoch."""
    row = await db.fetchrow(_ACQUIRE, sandbox, lease.owner, lease.ttl_s)
    return None if row is None else sandbox_of(row)


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
    db: Queries,
    sandbox: Sandbox,
    event: Event,
    *,
    reason: str | None = None,
    timings_ms: Mapping[str, float] | None = None,
    now: datetime.datetime | None = None,
    withdrawn_to: Desired | None = None,
    ending: Ending = NONE_ENDS,
) -> Sandbox:
    """Let `event` happen to the row that was read as `sandbox`, record it, and end operations: in one statement.

    The status then answers the generation that was read, if `convergence.answers` says so, and no later one. A wish
    that has failed is withdrawn, unless there is a newer one: to `withdrawn_to`, or what the event says. `now` is by
    the steady clock; None takes the database's. Raises Stale where the row has changed since, IllegalTransition where
    the event cannot happen.
    """
    state = lifecycle.advance(sandbox.state, event)
    answered = convergence.answers(sandbox.spec.desired, event, state)
    observed = sandbox.generation if answered else min(sandbox.observed_generation, sandbox.generation - 1)
    timings = None if timings_ms is None else dict(timings_ms)
    row = await db.fetchrow(
        _MOVE, sandbox.id, sandbox.epoch, sandbox.state, state, reason, observed, timings, sandbox.generation,
        (withdrawn_to or convergence.WITHDRAWN.get(event)) if answered else None, event, now, *ending.arguments(),
    )  # fmt: skip
    return _fresh(row, sandbox)


async def answer(
    db: Queries,
    sandbox: Sandbox,
    *,
    reason: str | None,
    withdrawn_to: Desired | None = None,
    ending: Ending = NONE_ENDS,
) -> Sandbox:
    """Let the status, as it is, answer the generation that was read: nothing had to be done, or it could not be.

    In the latter case the wish becomes `withdrawn_to`, unless there is a newer one. Raises Stale.
    """
    row = await db.fetchrow(
        _ANSWER, sandbox.id, sandbox.epoch, sandbox.state, sandbox.generation, withdrawn_to, reason,
        *ending.arguments(),
    )  # fmt: skip
    return _fresh(row, sandbox)


async def mark_durable(db: Queries, sandbox: SandboxId, generation: int) -> None:
    """Record that suspension number `generation` is safe on storage; nothing happens where that is known."""
    await db.execute(_DURABLE, sandbox, generation)


async def unchanged_s(db: Queries, sandbox: SandboxId) -> float:
    """Return for how many seconds a row has been as it is; 0 where there is none."""
    row = await db.fetchrow(_AGE, sandbox)
    return 0.0 if row is None else float(row["age_s"])


def _fresh(row: Record | None, sandbox: Sandbox) -> Sandbox:
    if row is None:
        raise Stale(f"Sandbox {sandbox.id} has changed meanwhile; read it again.")
    return sandbox_of(row)


async def lagging(db: Queries, limit: int) -> list[SandboxId]:
    """Return sandboxes whose status lags behind the wish and that nobody holds, longest untouched first."""
    return [SandboxId(row["id"]) for row in await db.fetch(_LAGGING, limit)]


async def on_worker(db: Queries, worker: WorkerId) -> list[Sandbox]:
    """Return the sandboxes of which we believe that this worker holds a VM or a suspension, and nobody is at work."""
    return [sandbox_of(row) for row in await db.fetch(_ON_WORKER, worker)]


async def by_ids(db: Queries, ids: Collection[SandboxId]) -> dict[SandboxId, Sandbox]:
    """Return those of these sandboxes that have a row."""
    found = (sandbox_of(row) for row in await db.fetch(_BY_IDS, list(ids)))
    return {sandbox.id: sandbox for sandbox in found}


async def count(db: Queries) -> dict[str, int]:
    """Return the number of sandboxes by state, deleted ones left out."""
    return {row["state"]: row["count"] for row in await db.fetch(_COUNT)}


async def purge(db: Queries, days: int) -> None:
    """Forget sandboxes deleted more than `days` ago, with their events and operations."""
    await db.execute(_PURGE, days)
