"""Projects: the tenants."""

from space.model.ids import ProjectId, new_id
from space.store.db import Queries

_ENSURE = """
INSERT INTO projects (id, name) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING id"""
_NAME = "SELECT name FROM projects WHERE id = $1"


async def ensure(db: Queries, name: str) -> ProjectId:
    """Return the project with this name; made if there is none."""
    row = await db.fetchrow(_ENSURE, new_id(), name)
    assert row is not None
    return ProjectId(row["id"])


async def name(db: Queries, project: ProjectId) -> str:
    """Return the name of a project that there is."""
    row = await db.fetchrow(_NAME, project)
    assert row is not None
    return str(row["name"])
