"""Projects: the tenants."""

from space.model.ids import ProjectId, new_id
from space.store.db import Queries

_ENSURE = """
INSERT INTO projects (id, name) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING id"""


async def ensure(db: Queries, name: str) -> ProjectId:
    """Return the project with this name; made if there is none."""
    row = await db.fetchrow(_ENSURE, new_id(), name)
    assert row is not None
    return ProjectId(row["id"])
