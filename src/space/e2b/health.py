"""`GET /health`."""

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse


def add_routes(app: FastAPI) -> None:
    """Add the route."""

    @app.get("/health")
    async def show_health() -> PlainTextResponse:
        """Tell that the process answers."""
        return PlainTextResponse("Health check successful")
