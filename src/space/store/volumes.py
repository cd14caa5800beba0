"""Volumes of projects. What is in them lies with their workers."""

from space.model.ids import ProjectId, SandboxId, VolumeId, WorkerId
from space.model.volume import Volume
from space.store.db import Queries, Record

_COLUMNS = "id, project_id, name, worker, size_mib, created_at"
# one that was begun and not finished, by a process that died, is taken up again
_BEGIN = f"""
INSERT INTO volumes (id, project_id, name, worker, size_mib) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (project_id, name) DO UPDATE SET size_mib = excluded.size_mib WHERE volumes.state = 'making'
RETURNING {_COLUMNS}"""
_READY = "UPDATE volumes SET state = 'ready' WHERE id = $1 AND state = 'making'"
_GET = f"SELECT {_COLUMNS} FROM volumes WHERE project_id = $1 AND (id = $2 OR name = $2) AND state = 'ready'"
_OF_ANY = f"SELECT {_COLUMNS} FROM volumes WHERE id = $1 AND state = 'ready'"
_LIST = f"SELECT {_COLUMNS} FROM volumes WHERE project_id = $1 AND state = 'ready' ORDER BY created_at, id"
# locks: a delete waits for creates that are about to use it, and they for it
_NAMED = f"""
SELECT {_COLUMNS} FROM volumes WHERE project_id = $1 AND name = ANY($2::text[]) AND state = 'ready' FOR SHARE"""
_LOCK = f"""
SELECT {_COLUMNS} FROM volumes WHERE project_id = $1 AND (id = $2 OR name = $2) AND state <> 'making' FOR UPDATE"""
_DELETING = "UPDATE volumes SET state = 'deleting' WHERE id = $1"
_DELETE = "DELETE FROM volumes WHERE id = $1"
_USERS = """
SELECT id FROM sandboxes
 WHERE volumes <> '[]' AND state <> 'deleted' AND volumes @> jsonb_build_array(jsonb_build_object('volume', $1::text))
 ORDER BY created_at LIMIT 5"""


def _volume(row: Record) -> Volume:
    return Volume(
        id=VolumeId(row["id"]),
        project=ProjectId(row["project_id"]),
        name=row["name"],
        worker=WorkerId(row["worker"]),
        size_mib=row["size_mib"],
        created_at=row["created_at"],
    )


async def begin(
    db: Queries, volume: VolumeId, project: ProjectId, name: str, worker: WorkerId, mib: int
) -> Volume | None:
    """Record a volume that is being made; None where the name is taken."""
    row = await db.fetchrow(_BEGIN, volume, project, name, worker, mib)
    return None if row is None else _volume(row)


async def ready(db: Queries, volume: VolumeId) -> None:
    """Record that it is there."""
    await db.execute(_READY, volume)


async def find(db: Queries, project: ProjectId, name_or_id: str) -> Volume | None:
    """Return one of the project's."""
    row = await db.fetchrow(_GET, project, name_or_id)
    return None if row is None else _volume(row)


async def of_any(db: Queries, volume: str) -> Volume | None:
    """Return one of whichever project."""
    row = await db.fetchrow(_OF_ANY, volume)
    return None if row is None else _volume(row)


async def listed(db: Queries, project: ProjectId) -> list[Volume]:
    """Return the project's, oldest first."""
    return [_volume(row) for row in await db.fetch(_LIST, project)]


async def named(tx: Queries, project: ProjectId, names: list[str]) -> dict[str, Volume]:
    """Return those of these that there are, by name; they stay until the transaction ends."""
    return {row["name"]: _volume(row) for row in await tx.fetch(_NAMED, project, names)}


async def lock(tx: Queries, project: ProjectId, name_or_id: str) -> Volume | None:
    """Return one of the project's, even one that is being deleted; nobody begins to use it in this transaction."""
    row = await tx.fetchrow(_LOCK, project, name_or_id)
    return None if row is None else _volume(row)


async def users(tx: Queries, volume: VolumeId) -> list[SandboxId]:
    """Return up to five sandboxes that have it mounted, in whatever state they are."""
    return [SandboxId(row["id"]) for row in await tx.fetch(_USERS, volume)]


async def begin_delete(tx: Queries, volume: VolumeId) -> None:
    """Record that it is being deleted."""
    await tx.execute(_DELETING, volume)


async def forget(db: Queries, volume: VolumeId) -> None:
    """Record that it is gone."""
    await db.execute(_DELETE, volume)
