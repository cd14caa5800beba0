"""Puts the api together: routes over the use cases, one error handler, the OpenAPI document."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from space import __version__
from space.api import agent_routes, builds, egress, health, keys, lifecycle, sandboxes, secrets, templates, volumes
from space.control.figures import Figures
from space.control.plane import Plane
from space.wire.problem import MEDIA_TYPE, Problem
from space.wire.serving import answer_with_problems

OPEN = frozenset({"/healthz", "/readyz", "/openapi.json"})
"""What needs no key."""


def create_app(plane: Plane, figures: Figures) -> FastAPI:
    """Return the application. No interactive documentation: its pages load scripts from elsewhere."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url="/openapi.json", redirect_slashes=False)
    answer_with_problems(app)
    sandboxes.add_routes(app, plane)
    lifecycle.add_routes(app, plane)
    templates.add_routes(app, plane)
    builds.add_routes(app, plane)
    keys.add_routes(app, plane)
    egress.add_routes(app, plane)
    secrets.add_routes(app, plane)
    volumes.add_routes(app, plane)
    health.add_routes(app, plane, figures)
    agent_routes.add_refusals(app)
    document = _document(app)
    app.openapi = lambda: document  # type: ignore[method-assign] # FastAPI's documented way to extend it
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(
        title="SPACE",
        version=__version__,
        description="Disposable Linux computers for AI agents. Errors are `application/problem+json` with a `code`.",
        routes=app.routes,
    )
    for item in found["paths"].values():
        for operation in item.values():  # the first line of the route's docstring, in place of a title made of its name
            operation["summary"] = operation["description"].split("\n", 1)[0]
    schemas = found["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = Problem.model_json_schema()
    found["components"]["securitySchemes"] = {
        "key": {"type": "apiKey", "in": "header", "name": "X-API-KEY"},
        "bearer": {"type": "http", "scheme": "bearer"},
    }
    found["security"] = [{"key": []}, {"bearer": []}]
    found["paths"] |= agent_routes.paths()
    problem = {
        "description": "What went wrong, and what to do.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for path, item in found["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            operation["responses"].pop("422", None)  # FastAPI's own form of it, which we do not send
            operation["responses"]["default"] = problem
            if path in OPEN:
                operation["security"] = []
    return found
