"""The surface's application: its routes over the use cases, and which paths are its own.

It routes on the raw path. Starlette decodes `%2F` before it looks for a route, and then a template called `team/name`
is two parts of a path; here a route's parameter arrives as it was sent, and `request.text` decodes it.
"""

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from space.control.plane import Plane
from space.e2b import (
    builds,
    copies,
    health,
    lifecycle,
    lists,
    logs,
    metrics,
    sandboxes,
    secrets,
    tags,
    teams,
    templates,
    volumes,
)
from space.e2b.errors import answer_with_e2b_errors

PARTS = frozenset(
    {
        *("default-templates", "health", "sandboxes", "secrets", "snapshots", "teams", "template-files", "templates"),
        *("v2", "v3", "volumecontent", "volumes"),
    }
)
"""First parts of the paths that belong to this surface."""

OPEN = frozenset({"/health", builds.UPLOAD})
"""What needs no key; a link for uploads has a signature."""

OPEN_BELOW = volumes.CONTENT
"""Below this a volume's own token is asked for, not a key."""


def create_app(plane: Plane, domain: str | None) -> ASGIApp:
    """Return the application. It has no OpenAPI document: E2B publishes its own, and the clients are made already."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    answer_with_e2b_errors(app)
    health.add_routes(app)
    metrics.add_routes(app, plane)  # before the sandboxes: /sandboxes/metrics is none
    sandboxes.add_routes(app, plane, domain)
    lists.add_routes(app, plane)
    lifecycle.add_routes(app, plane, domain)
    copies.add_routes(app, plane, domain)
    logs.add_routes(app, plane)
    secrets.add_routes(app, plane)
    teams.add_routes(app, plane)
    volumes.add_routes(app, plane)
    tags.add_routes(app, plane)  # before the templates: /templates/tags is no template
    templates.add_routes(app, plane)
    builds.add_routes(app, plane)

    async def on_raw_path(scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope["raw_path"]
        scope["path"] = raw.decode("latin-1")
        await app(scope, receive, send)

    return on_raw_path
