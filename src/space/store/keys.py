"""API keys, stored as hashes only."""

from collections.abc import Iterable

from space.model.ids import KeyId, ProjectId, new_id
from space.model.key import ApiKey
from space.store.db import Queries, Record

_COLUMNS = "id, project_id, label, created_at, last_used_at, revoked_at"
_INSERT = f"INSERT INTO api_keys (id, project_id, hash, label) VALUES ($1, $2, $3, $4) RETURNING {_COLUMNS}"
_BY_HASHES = f"SELECT {_COLUMNS}, hash FROM api_keys WHERE hash = ANY($1::text[]) AND revoked_at IS NULL"
_TOUCH = """
UPDATE api_keys SET last_used_at = now()
 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')"""
_LIST = f"SELECT {_COLUMNS} FROM api_keys WHERE project_id = $1 ORDER BY created_at, id"
_REVOKE = f"""
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now())
 WHERE project_id = $1 AND id = $2 RETURNING {_COLUMNS}"""


def _key(row: Record) -> ApiKey:
    return ApiKey(
        id=KeyId(row["id"]),
        project=ProjectId(row["project_id"]),
        label=row["label"],
        created_at=row["created_at"],
        last_used_at=row["last_used_at"],
        revoked_at=row["revoked_at"],
    )


async def insert(db: Queries, project: ProjectId, key_hash: str, label: str) -> ApiKey:
    """Record a new key by the hash of its text."""
    row = await db.fetchrow(_INSERT, new_id(), project, key_hash, label)
    assert row is not None
    return _key(row)


async def by_hashes(db: Queries, hashes: Iterable[str]) -> dict[str, ApiKey]:
    """Return the keys with these hashes, by hash; without those that there are not or that were revoked."""
    return {row["hash"]: _key(row) for row in await db.fetch(_BY_HASHES, list(hashes))}


async def touch(db: Queries, key: KeyId) -> None:
    """Record that a key was used just now; written at most once a minute."""
    await db.execute(_TOUCH, key)


async def listed(db: Queries, project: ProjectId) -> list[ApiKey]:
    """Return a project's keys, revoked ones too, oldest first."""
    return [_key(row) for row in await db.fetch(_LIST, project)]


async def revoke(db: Queries, project: ProjectId, key: KeyId) -> ApiKey | None:
    """End a key for good; the first time counts. None where the project has no such key."""
    row = await db.fetchrow(_REVOKE, project, key)
    return None if row is None else _key(row)
