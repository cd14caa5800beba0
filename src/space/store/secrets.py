"""Secrets, sealed: this module never has a value, nor the key to one."""

import dataclasses
from collections.abc import Collection, Mapping

from space.model.errors import Stale
from space.model.ids import ProjectId, new_id
from space.model.secret import Sealed, Secret
from space.store.db import Queries, Record

_COLUMNS = "id, name, version, metadata, created_at, updated_at"
# Writers of one project's secrets wait for each other; inserts of its sandboxes do not.
_LOCK = "SELECT 1 FROM projects WHERE id = $1 FOR NO KEY UPDATE"
_COUNT = "SELECT count(*) AS count FROM secrets WHERE project_id = $1"
_NEXT = "SELECT id, version + 1 AS version FROM secrets WHERE project_id = $1 AND name = $2"
_PUT = f"""
INSERT INTO secrets (project_id, name, id, version, sealed, key_id, metadata)
VALUES ($1, $2, $3, $4, $5, $6, coalesce($7, '{{}}'::jsonb))
ON CONFLICT (project_id, name) DO UPDATE
   SET version = excluded.version, sealed = excluded.sealed, key_id = excluded.key_id, updated_at = now(), rotated = 0,
       metadata = coalesce($7, secrets.metadata)
RETURNING {_COLUMNS}"""
_OWNER = "SELECT project_id FROM secrets WHERE id = $1"
_SEALED_ONE = "SELECT id, name, version, rotated, sealed, key_id FROM secrets WHERE id = $1"
_ROTATE = """
UPDATE secrets SET version = version + 1, rotated = rotated + 1, sealed = $3, key_id = $4, updated_at = now()
 WHERE id = $1 AND version = $2 RETURNING version"""
_LIST = f"SELECT {_COLUMNS} FROM secrets WHERE project_id = $1 ORDER BY name"
_FIND = (
    f"SELECT {_COLUMNS} FROM secrets WHERE project_id = $1 AND (name = $2 OR id = $2) ORDER BY name = $2 DESC LIMIT 1"
)
_DELETE = "DELETE FROM secrets WHERE project_id = $1 AND name = $2 RETURNING name"
_SEALED = """
SELECT id, name, version, rotated, sealed, key_id FROM secrets
 WHERE project_id = $1 AND name = ANY($2::text[])"""
_OTHER_KEYS = """
SELECT id, name, version, rotated, sealed, key_id FROM secrets
 WHERE key_id <> $1 AND id > $2 ORDER BY id LIMIT $3"""
_RESEAL = "UPDATE secrets SET sealed = $3, key_id = $4 WHERE id = $1 AND version = $2"


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a value belongs: it can be opened only as this version of this secret."""

    id: str
    version: int


@dataclasses.dataclass(frozen=True, slots=True)
class SealedSecret:
    """A stored value. `given_version` is the last one that somebody set; a provider's rotations count from there."""

    name: str
    place: Place
    given_version: int
    sealed: Sealed


def _secret(row: Record) -> Secret:
    return Secret(row["id"], row["name"], row["version"], row["metadata"], row["created_at"], row["updated_at"])


def _sealed(row: Record) -> SealedSecret:
    place, sealed = Place(row["id"], row["version"]), Sealed(row["key_id"], row["sealed"])
    return SealedSecret(row["name"], place, row["version"] - row["rotated"], sealed)


async def lock(tx: Queries, project: ProjectId) -> int:
    """Keep other writers of a project's secrets out until the transaction ends; returns how many it has."""
    await tx.execute(_LOCK, project)
    row = await tx.fetchrow(_COUNT, project)
    assert row is not None
    return int(row["count"])


async def next_place(tx: Queries, project: ProjectId, name: str) -> Place:
    """Return where the next value of a secret belongs; version 1 of a new one where there is none."""
    row = await tx.fetchrow(_NEXT, project, name)
    return Place(new_id(), 1) if row is None else Place(row["id"], row["version"])


async def put(
    tx: Queries,
    project: ProjectId,
    name: str,
    place: Place,
    sealed: Sealed,
    metadata: Mapping[str, str] | None = None,
) -> Secret:
    """Record a value, in place of the one before; `metadata` None leaves that as it is."""
    given = None if metadata is None else dict(metadata)
    row = await tx.fetchrow(_PUT, project, name, place.id, place.version, sealed.data, sealed.key_id, given)
    assert row is not None
    return _secret(row)


async def listed(db: Queries, project: ProjectId) -> list[Secret]:
    """Return a project's secrets by name, without their values."""
    return [_secret(row) for row in await db.fetch(_LIST, project)]


async def find(db: Queries, project: ProjectId, name_or_id: str) -> Secret | None:
    """Return the project's secret with this name, else the one with this id."""
    row = await db.fetchrow(_FIND, project, name_or_id)
    return None if row is None else _secret(row)


async def delete(tx: Queries, project: ProjectId, name: str) -> bool:
    """Remove a secret; False where there is none."""
    return await tx.fetchrow(_DELETE, project, name) is not None


async def sealed(db: Queries, project: ProjectId, names: Collection[str]) -> list[SealedSecret]:
    """Return the stored values of those of these secrets that there are."""
    return [_sealed(row) for row in await db.fetch(_SEALED, project, list(names))]


async def owner(db: Queries, secret: str) -> ProjectId | None:
    """Return whose secret has this id."""
    row = await db.fetchrow(_OWNER, secret)
    return None if row is None else ProjectId(row["project_id"])


async def sealed_one(tx: Queries, secret: str) -> SealedSecret | None:
    """Return the stored value of the secret with this id."""
    row = await tx.fetchrow(_SEALED_ONE, secret)
    return None if row is None else _sealed(row)


async def rotate(tx: Queries, place: Place, sealed: Sealed) -> int:
    """Put what a provider gave in the place of a value, sealed for the version after it; returns that version.

    Raises Stale where that is not the newest value.
    """
    row = await tx.fetchrow(_ROTATE, place.id, place.version, sealed.data, sealed.key_id)
    if row is None:
        raise Stale("Somebody has set the secret meanwhile.")
    return int(row["version"])


async def under_other_keys(db: Queries, key_id: str, after: str, limit: int) -> list[SealedSecret]:
    """Return values that were sealed with another master key, of any project, by id after one of them."""
    return [_sealed(row) for row in await db.fetch(_OTHER_KEYS, key_id, after, limit)]


async def reseal(db: Queries, place: Place, sealed: Sealed) -> None:
    """Replace the sealed form of a value; nothing happens where there is a newer value."""
    await db.execute(_RESEAL, place.id, place.version, sealed.data, sealed.key_id)
