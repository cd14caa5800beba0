"""`/healthz`, `/readyz`, `/metrics`."""

from typing import Literal

import pydantic
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from space.control.figures import Figures
from space.control.plane import Plane
from space.model.errors import Unavailable


class Health(pydantic.BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(pydantic.BaseModel):
    """Whether everything that a create needs answers: the database, and at least one worker."""

    ready: bool
    database: bool
    workers: int
    workers_connected: int


def add_routes(app: FastAPI, plane: Plane, figures: Figures) -> None:
    """Add the routes over `plane`."""

    @app.get("/healthz", tags=["health"])
    async def healthz() -> Health:
        """Tell that the process answers."""
        return Health()

    @app.get(
        "/readyz",
        tags=["health"],
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "Not ready; the fields say what is missing."}},
    )
    async def readyz() -> Response:
        """Tell whether sandboxes can be made."""
        try:
            await plane.db.execute("SELECT 1")
            database = True
        except Unavailable:
            database = False
        connected = plane.workers.connected
        found = Readiness(
            ready=database and connected > 0,
            database=database,
            workers=len(plane.workers.links),
            workers_connected=connected,
        )
        return JSONResponse(found.model_dump(), 200 if found.ready else 503)

    @app.get(
        "/metrics",
        tags=["health"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Text format."}},
    )
    async def show_metrics() -> Response:
        """Give figures for Prometheus."""
        return Response(await figures.text(plane), media_type="text/plain; version=0.0.4")
