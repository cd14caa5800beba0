"""Use cases on projects."""

from space.control.plane import Plane
from space.model.ids import ProjectId
from space.store import projects


async def name(plane: Plane, project: ProjectId) -> str:
    """Return a project's name."""
    return await projects.name(plane.db, project)
