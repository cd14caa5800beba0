"""Template builds and their logs. A build is done by one process, whose lease is on the row."""

import uuid
from collections.abc import Mapping, Sequence

from space.model.build import FINALIZE
from space.model.ids import ProjectId, TemplateDigest, WorkerId
from space.model.secret import Sealed
from space.model.template_build import BuildLine, BuildStatus, TemplateBuild
from space.store.db import Queries, Record

KEEP_LOGS = 100
"""Newest builds of a project whose logs are kept."""

NEVER_BEGUN_S = 2 * 3600
"""A build that nobody has said anything of for so long is given up."""

_COLUMNS = """
b.id, b.project_id, n.id AS template_id, b.name, b.tags, b.vcpus, b.memory_mib, b.min_free_mib, b.worker, b.wish,
b.status, b.digest, b.reason, b.reason_code, b.reason_step, b.created_at, b.updated_at, b.finished_at"""
_JOINED = "template_builds b JOIN template_names n ON n.project_id = b.project_id AND n.name = b.name"
_INSERT = """
INSERT INTO template_builds (id, project_id, name, tags, vcpus, memory_mib, min_free_mib, worker)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"""
_GET = f"SELECT {_COLUMNS} FROM {_JOINED} WHERE b.project_id = $1 AND b.id = $2"
_OF_NAME = f"""
SELECT {_COLUMNS} FROM {_JOINED} WHERE b.project_id = $1 AND b.name = $2 ORDER BY b.created_at DESC, b.id LIMIT $3"""
_BEGIN = """
UPDATE template_builds SET wish = $3, sealed = $4, key_id = $5, asked_at = now(), updated_at = now()
 WHERE project_id = $1 AND id = $2 AND wish IS NULL AND status = 'waiting' RETURNING id"""
_CLAIM = f"""
WITH claimed AS (
    UPDATE template_builds SET status = 'building', lease_owner = $1, started_at = now(), updated_at = now(),
           lease_until = now() + make_interval(secs => $2)
     WHERE id = (SELECT id FROM template_builds WHERE status = 'waiting' AND wish IS NOT NULL
                  ORDER BY asked_at, id FOR UPDATE SKIP LOCKED LIMIT 1)
    RETURNING *)
SELECT {_COLUMNS} FROM claimed b JOIN template_names n ON n.project_id = b.project_id AND n.name = b.name"""
_RENEW = """
UPDATE template_builds SET lease_until = now() + make_interval(secs => $3)
 WHERE id = $1 AND lease_owner = $2 AND status = 'building' RETURNING id"""
_SEALED = "SELECT sealed, key_id FROM template_builds WHERE id = $1 AND sealed IS NOT NULL"
_FINISH = """
UPDATE template_builds
   SET status = $3, digest = $4, reason = $5, reason_code = $6, reason_step = $7, sealed = NULL, key_id = NULL,
       lease_owner = NULL, lease_until = NULL, finished_at = now(), updated_at = now()
 WHERE id = $1 AND lease_owner = $2 AND status = 'building' RETURNING id"""
_GIVE_UP = """
UPDATE template_builds
   SET status = 'error', reason = $1, reason_code = 'unavailable', reason_step = $2, sealed = NULL, key_id = NULL,
       lease_owner = NULL, finished_at = now(), updated_at = now()
 WHERE status = 'building' AND lease_until < now() RETURNING id"""
_EXPIRE = """
UPDATE template_builds
   SET status = 'error', reason = $1, reason_code = 'conflict', finished_at = now(), updated_at = now()
 WHERE status = 'waiting' AND wish IS NULL AND created_at < now() - make_interval(secs => $2)"""
_LOG = """
INSERT INTO template_build_logs (build_id, line, at, step, level, text)
SELECT $1, line, at, step, level, text
  FROM unnest($2::integer[], $3::timestamptz[], $4::text[], $5::text[], $6::text[])
    AS given (line, at, step, level, text)
ON CONFLICT (build_id, line) DO NOTHING"""
_LINES = """
SELECT line, at, step, level, text FROM template_build_logs
 WHERE build_id = $1 AND level = ANY($2::text[]) ORDER BY line OFFSET $3 LIMIT $4"""
_LINES_FROM = """
SELECT line, at, step, level, text FROM template_build_logs
 WHERE build_id = $1 AND level = ANY($2::text[]) AND at >= to_timestamp($3::bigint / 1000.0) ORDER BY line LIMIT $4"""
_LINES_BACK = """
SELECT line, at, step, level, text FROM template_build_logs
 WHERE build_id = $1 AND level = ANY($2::text[]) AND ($3::bigint = 0 OR at <= to_timestamp($3::bigint / 1000.0))
 ORDER BY line DESC LIMIT $4"""
_FORGET_LOGS = """
DELETE FROM template_build_logs WHERE build_id IN (
    SELECT id FROM template_builds WHERE project_id = $1 AND status IN ('ready', 'error')
     ORDER BY created_at DESC OFFSET $2)"""
_ORPHANS = """
SELECT held FROM unnest($1::text[]) AS held
 WHERE NOT EXISTS (SELECT 1 FROM templates t WHERE t.digest = held)
   AND NOT EXISTS (SELECT 1 FROM template_builds b WHERE b.status = 'building')"""


def _build(row: Record) -> TemplateBuild:
    return TemplateBuild(
        id=row["id"],
        project=ProjectId(row["project_id"]),
        template_id=row["template_id"],
        name=row["name"],
        tags=tuple(row["tags"]),
        vcpus=row["vcpus"],
        memory_mib=row["memory_mib"],
        min_free_mib=row["min_free_mib"],
        worker=None if row["worker"] is None else WorkerId(row["worker"]),
        wish=row["wish"],
        status=BuildStatus(row["status"]),
        digest=None if row["digest"] is None else TemplateDigest(row["digest"]),
        reason=row["reason"],
        reason_code=row["reason_code"],
        reason_step=row["reason_step"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        finished_at=row["finished_at"],
    )


async def insert(
    tx: Queries,
    project: ProjectId,
    name: str,
    tags: Sequence[str],
    vcpus: int,
    memory_mib: int,
    min_free_mib: int,
    worker: WorkerId | None,
) -> uuid.UUID:
    """Record a build of a name that is there; nobody has said yet what to build."""
    ident = uuid.uuid4()
    await tx.execute(_INSERT, ident, project, name, list(tags), vcpus, memory_mib, min_free_mib, worker)
    return ident


async def get(db: Queries, project: ProjectId, build: uuid.UUID) -> TemplateBuild | None:
    """Return a build of the project."""
    row = await db.fetchrow(_GET, project, build)
    return None if row is None else _build(row)


async def of_name(db: Queries, project: ProjectId, name: str, limit: int) -> list[TemplateBuild]:
    """Return the builds of a name, newest first."""
    return [_build(row) for row in await db.fetch(_OF_NAME, project, name, limit)]


async def begin(
    db: Queries, project: ProjectId, build: uuid.UUID, wish: Mapping[str, object], password: Sealed | None
) -> bool:
    """Say what to build; False where that was said before, or there is no such build."""
    data, key_id = (None, None) if password is None else (password.data, password.key_id)
    return await db.fetchrow(_BEGIN, project, build, dict(wish), data, key_id) is not None


async def claim(db: Queries, owner: str, ttl_s: float) -> TemplateBuild | None:
    """Take the build that has waited longest; it is `building` from now on."""
    row = await db.fetchrow(_CLAIM, owner, ttl_s)
    return None if row is None else _build(row)


async def renew(db: Queries, build: uuid.UUID, owner: str, ttl_s: float) -> bool:
    """Keep a build; False where it is no longer the owner's, or its template was deleted."""
    return await db.fetchrow(_RENEW, build, owner, ttl_s) is not None


async def password(db: Queries, build: uuid.UUID) -> Sealed | None:
    """Return the sealed password of a build's image."""
    row = await db.fetchrow(_SEALED, build)
    return None if row is None else Sealed(row["key_id"], row["sealed"])


async def succeed(tx: Queries, build: uuid.UUID, owner: str, digest: TemplateDigest) -> bool:
    """Record that a build has made a template; False where it is no longer the owner's."""
    return await tx.fetchrow(_FINISH, build, owner, BuildStatus.READY, digest, None, None, None) is not None


async def fail(tx: Queries, build: uuid.UUID, owner: str, reason: str, code: str, step: str | None) -> bool:
    """Record that a build came to nothing; False where it is no longer the owner's."""
    return await tx.fetchrow(_FINISH, build, owner, BuildStatus.ERROR, None, reason, code, step) is not None


async def give_up_lost(db: Queries) -> list[uuid.UUID]:
    """End the builds whose process is gone, and those that nobody began; returns the former."""
    gone = "The process that ran this build went away. Build again; finished steps are kept."
    await db.execute(_EXPIRE, "The build was requested and never begun.", NEVER_BEGUN_S)
    return [row["id"] for row in await db.fetch(_GIVE_UP, gone, FINALIZE)]


async def log(db: Queries, build: uuid.UUID, lines: Sequence[BuildLine]) -> None:
    """Append lines to a build's log; those that are there already are skipped."""
    columns = [[getattr(line, field) for line in lines] for field in ("number", "at", "step", "level", "text")]
    await db.execute(_LOG, build, *columns)


async def lines(db: Queries, build: uuid.UUID, levels: Sequence[str], offset: int, limit: int) -> list[BuildLine]:
    """Return lines of these levels, after so many of them."""
    found = await db.fetch(_LINES, build, list(levels), offset, limit)
    return [BuildLine(row["line"], row["at"], row["step"], row["level"], row["text"]) for row in found]


async def lines_from(
    db: Queries, build: uuid.UUID, levels: Sequence[str], since_ms: int, limit: int, *, newest_first: bool
) -> list[BuildLine]:
    """Return lines of these levels from a moment on, or from it back (0: from the end)."""
    statement = _LINES_BACK if newest_first else _LINES_FROM
    found = await db.fetch(statement, build, list(levels), since_ms, limit)
    return [BuildLine(row["line"], row["at"], row["step"], row["level"], row["text"]) for row in found]


async def forget_logs(db: Queries, project: ProjectId) -> None:
    """Forget the logs of all but the newest builds of a project."""
    await db.execute(_FORGET_LOGS, project, KEEP_LOGS)


async def orphans(db: Queries, held: Sequence[TemplateDigest]) -> list[TemplateDigest]:
    """Return which of these built templates no project has, while nothing is being built."""
    return [TemplateDigest(row["held"]) for row in await db.fetch(_ORPHANS, list(held))]
