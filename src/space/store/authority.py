"""The deployment's certificate authority: one root certificate, and its key, sealed."""

import dataclasses

from space.model.secret import Sealed
from space.store.db import Queries

_GET = "SELECT id, certificate, sealed, key_id FROM authority"
_INSERT = """
INSERT INTO authority (id, certificate, sealed, key_id) VALUES ($1, $2, $3, $4) ON CONFLICT (one) DO NOTHING"""
_RESEAL = "UPDATE authority SET sealed = $2, key_id = $3 WHERE id = $1"


@dataclasses.dataclass(frozen=True, slots=True)
class SealedRoot:
    """The root; `certificate` is PEM, and the sealed key can be opened only as that of `id`."""

    id: str
    certificate: str
    key: Sealed


async def get(db: Queries) -> SealedRoot | None:
    """Return the root; None before there is one."""
    row = await db.fetchrow(_GET)
    return None if row is None else SealedRoot(row["id"], row["certificate"], Sealed(row["key_id"], row["sealed"]))


async def insert(db: Queries, root: SealedRoot) -> None:
    """Record the first root; another process may have been quicker, and then nothing happens."""
    await db.execute(_INSERT, root.id, root.certificate, root.key.data, root.key.key_id)


async def reseal(db: Queries, root: str, key: Sealed) -> None:
    """Replace the sealed form of its key."""
    await db.execute(_RESEAL, root, key.data, key.key_id)
