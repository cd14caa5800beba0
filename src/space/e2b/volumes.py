"""`/volumes`, which are not offered: each call says so, and what to do."""

from fastapi import FastAPI, Request

from space.model.errors import NotOffered

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def add_routes(app: FastAPI) -> None:
    """Add the refusals."""

    async def refuse(_: Request) -> None:
        raise NotOffered(
            "Volumes are not offered here. Keep data in the sandbox and pause it, or take a snapshot and start others "
            "from it."
        )

    for path in ("/volumes", "/volumes/{rest:path}", "/volumecontent/{rest:path}"):
        app.add_api_route(path, refuse, methods=_METHODS)
