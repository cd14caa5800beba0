"""`GET /sandboxes` and `GET /v2/sandboxes`."""

import datetime
from collections.abc import Mapping
from typing import Literal
from urllib.parse import parse_qsl, unquote

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from space.control import sandboxes
from space.control.plane import Plane
from space.e2b import answers, references
from space.e2b.pages import MAX_PAGE, check_limit
from space.e2b.request import project_of
from space.model.errors import InvalidArgument, NotFound
from space.model.ids import ProjectId, SandboxId, is_id
from space.model.lifecycle import State
from space.model.sandbox_query import SandboxQuery

_ALL_AT_ONCE = 10_000
"""The old list has no pages."""


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    @app.get("/sandboxes")
    async def list_running(request: Request, metadata: str = "") -> Response:
        """List running sandboxes, newest first."""
        query = SandboxQuery(answers.RUNNING, metadata_filter(metadata))
        found = await sandboxes.listed(plane, project_of(request), query, limit=_ALL_AT_ONCE, after=None)
        return JSONResponse([answers.listed(sandbox, plane.clock) for sandbox in found])

    @app.get("/v2/sandboxes")
    async def list_sandboxes(
        request: Request,
        metadata: str = "",
        order: Literal["asc", "desc"] = "desc",
        template: str = "",
        limit: int = MAX_PAGE,
    ) -> Response:
        """List sandboxes, by pages."""
        project, given = project_of(request), request.query_params
        check_limit(limit)
        states = _states(given.getlist("state"))
        try:
            meant = (await references.find_usable(plane, project, template))[0] if template else None
        except NotFound:
            return JSONResponse([], headers={"x-total-running": "0"})
        query = SandboxQuery(
            states=frozenset(state for ours in states.values() for state in ours),
            labels=metadata_filter(metadata),
            since=_moment(given.get("startedAfter")),
            template=None if meant is None else (meant.digest, meant.name),
            oldest_first=order == "asc",
        )
        return await _page(plane, project, query, limit, given.get("nextToken"), running="running" in states)


async def _page(
    plane: Plane, project: ProjectId, query: SandboxQuery, limit: int, token: str | None, *, running: bool
) -> Response:
    if token and not is_id(token):
        raise InvalidArgument("Invalid next token")
    after = SandboxId(token) if token else None
    try:
        found = await sandboxes.listed(plane, project, query, limit=limit + 1, after=after)
    except NotFound as error:
        raise InvalidArgument("Invalid next token") from error
    headers: dict[str, str] = {"x-next-token": found[limit - 1].id} if len(found) > limit else {}
    if running:
        of_these = SandboxQuery(answers.RUNNING, query.labels, query.since, query.template)
        headers["x-total-running"] = str(await sandboxes.how_many(plane, project, of_these))
    return JSONResponse([answers.listed(sandbox, plane.clock) for sandbox in found[:limit]], headers=headers)


def metadata_filter(text: str) -> Mapping[str, str]:
    """Return what a `metadata` parameter asks for, once decoded as parameters are.

    It is a query string within the query string, and its names and values are encoded once more before that.
    Raises InvalidArgument for a pair without `=`.
    """
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True) if text else []
    except ValueError:
        raise InvalidArgument("Error parsing metadata: it is name=value, joined by &.") from None
    return {unquote(name): unquote(value) for name, value in pairs}


def _states(given: list[str]) -> dict[str, frozenset[State]]:
    names = {name for part in given for name in part.split(",") if name} or {"running", "paused"}
    known = {"running": answers.RUNNING, "paused": answers.PAUSED}
    if not names <= known.keys():
        raise InvalidArgument("state must be running or paused, or both with a comma.")
    return {name: known[name] for name in names}


def _moment(text: str | None) -> datetime.datetime | None:
    if not text:
        return None
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument("startedAfter must be a time like 2026-01-31T12:00:00Z.") from None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
