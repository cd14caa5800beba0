"""`/sandboxes/{id}/logs`: what happened to a sandbox, as lines of a log. What its programs print is not kept here."""

import datetime
import json
from typing import Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from space.control import sandboxes
from space.control.plane import Plane
from space.e2b.answers import Json
from space.e2b.request import project_of, sandbox_id
from space.model.errors import InvalidArgument
from space.model.ids import ProjectId, SandboxId
from space.model.lifecycle import State
from space.model.operation import SandboxEvent

MAX_LINES = 1000
_LEVELS = ("debug", "info", "warn", "error")
_MS = 1000


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    @app.get("/sandboxes/{ident}/logs")
    async def show_logs(request: Request, ident: str, start: int = 0, limit: int = MAX_LINES) -> Response:
        """List the lines since `start`, in milliseconds since 1970, oldest first."""
        _check(limit)
        found = await _all_events(plane, project_of(request), sandbox_id(ident))
        entries = [_entry(event) for event in found if _at_ms(event) >= start][:limit]
        lines = [{"timestamp": one["timestamp"], "line": json.dumps(one)} for one in entries]
        return JSONResponse({"logs": lines, "logEntries": entries})

    @app.get("/v2/sandboxes/{ident}/logs")
    async def show_logs_v2(
        request: Request,
        ident: str,
        cursor: int | None = None,
        limit: int = MAX_LINES,
        direction: Literal["forward", "backward"] = "forward",
        level: Literal["debug", "info", "warn", "error"] = "debug",
        search: str = "",
    ) -> Response:
        """List the lines from `cursor` on, in milliseconds since 1970, into this direction."""
        _check(limit)
        found = await _all_events(plane, project_of(request), sandbox_id(ident))
        forward = direction == "forward"
        if cursor is not None:
            found = [event for event in found if (_at_ms(event) >= cursor if forward else _at_ms(event) <= cursor)]
        meant = [
            entry
            for entry in map(_entry, found if forward else reversed(found))
            if _LEVELS.index(str(entry["level"])) >= _LEVELS.index(level) and search in str(entry["message"])
        ]
        return JSONResponse({"logs": meant[:limit]})


def _check(limit: int) -> None:
    if not 0 <= limit <= MAX_LINES:
        raise InvalidArgument(f"limit must be 0 to {MAX_LINES}.")


async def _all_events(plane: Plane, project: ProjectId, sandbox: SandboxId) -> list[SandboxEvent]:
    """Return all that happened to a sandbox, oldest first: a handful of events each time it sleeps."""
    found: list[SandboxEvent] = []
    while True:
        more = await sandboxes.events_of(plane, project, sandbox, found[-1].sequence if found else 0, MAX_LINES)
        found += more
        if len(more) < MAX_LINES:
            return found


def _at_ms(event: SandboxEvent) -> int:
    return int(event.at.astimezone(datetime.UTC).timestamp() * _MS)


def _entry(event: SandboxEvent) -> Json:
    because = f": {event.reason}" if event.reason else ""
    return {
        "timestamp": event.at.isoformat(),
        "message": f"sandbox {event.type}{because}",
        "level": "error" if event.state == State.FAILED else "info",
        "fields": {"event": event.type, "state": event.state},
    }
