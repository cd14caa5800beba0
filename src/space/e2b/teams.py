"""`GET /teams`, which E2B's command line asks for: the project of the key, the only one that a key can know of."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from space.control import projects
from space.control.access import shown_key
from space.control.plane import Plane
from space.e2b.request import project_of


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the route over `plane`."""

    @app.get("/teams")
    async def list_teams(request: Request) -> Response:
        """List the one team. Its `apiKey` is the one that was sent: no other is known by its text."""
        project = project_of(request)
        team = {
            "teamID": project,
            "name": await projects.name(plane, project),
            "apiKey": shown_key(dict(request.scope["headers"])),
            "isDefault": True,
        }
        return JSONResponse([team])
