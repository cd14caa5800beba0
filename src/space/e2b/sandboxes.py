"""`/sandboxes` and `/v2/sandboxes`."""

from fastapi import FastAPI, Request
from fastapi.responses import Response

from space.control import sandboxes
from space.control.plane import Plane
from space.e2b.request import project_of, sandbox_id
from space.model.errors import NotFound


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    @app.delete("/sandboxes/{ident}")
    async def kill(request: Request, ident: str) -> Response:
        """Delete a sandbox in whatever state; 404 where it is deleted already."""
        operation = await sandboxes.delete(plane, project_of(request), sandbox_id(ident), wait=True)
        if operation is None:
            raise NotFound(f"sandbox {ident!r} was not found")
        return Response(status_code=204)
