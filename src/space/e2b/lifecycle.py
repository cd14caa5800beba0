"""What can be done with a sandbox while it lives: connect, resume, pause, and its timeout."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from space.control import lifecycle, timeouts
from space.control.plane import Plane
from space.e2b import answers
from space.e2b.models import Connect, Pause, Refresh, Resume, Timeout
from space.e2b.request import project_of, read_json, sandbox_id
from space.model.errors import Conflict, InvalidArgument
from space.model.operation import OperationKind
from space.model.sandbox import OnTimeout

_BASE = "/sandboxes/{ident}"


def add_routes(app: FastAPI, plane: Plane, domain: str | None) -> None:
    """Add the routes over `plane`; `domain` as in answers.created."""
    _add_waking(app, plane, domain)
    _add_timeouts(app, plane)

    @app.post(f"{_BASE}/pause")
    async def pause(request: Request, ident: str) -> Response:
        """Put a sandbox to storage; 409 where it is there already."""
        body = await read_json(request, Pause)
        kind = OperationKind.SUSPEND
        _, operation = await lifecycle.ask(
            plane, project_of(request), sandbox_id(ident), kind, memory=body.memory, wait=True
        )
        if operation is None:
            raise Conflict(f"sandbox {ident!r} is already paused")
        return Response(status_code=204)


def _add_waking(app: FastAPI, plane: Plane, domain: str | None) -> None:
    async def connect(request: Request, ident: str, body: Connect) -> Response:
        row, woke = await timeouts.connect(
            plane, project_of(request), sandbox_id(ident), body.timeout, memory=body.memory
        )
        return JSONResponse(answers.created(row, domain), 201 if woke else 200)

    @app.post(f"{_BASE}/connect")
    async def connect_v1(request: Request, ident: str) -> Response:
        """Have a sandbox run for at least this long; 201 where it was paused."""
        body = await read_json(request, Connect)
        if "timeout" not in body.model_fields_set:
            raise InvalidArgument("timeout: is needed here; only /v2 has a default for it.")
        return await connect(request, ident, body)

    @app.post(f"/v2{_BASE}/connect")
    async def connect_v2(request: Request, ident: str) -> Response:
        """Have a sandbox run for at least this long; 201 where it was paused."""
        return await connect(request, ident, await read_json(request, Connect))

    @app.post(f"{_BASE}/resume")
    async def resume(request: Request, ident: str) -> Response:
        """Resume a paused sandbox; 409 where it runs."""
        body = await read_json(request, Resume)
        project, sandbox = project_of(request), sandbox_id(ident)
        if body.auto_pause is not None:
            on_timeout = OnTimeout.SUSPEND if body.auto_pause else OnTimeout.DELETE
            change = lifecycle.Changes(on_timeout=on_timeout)
        else:
            change = lifecycle.Changes()
        row = await timeouts.resume(plane, project, sandbox, body.timeout, change, memory=body.memory)
        return JSONResponse(answers.created(row, domain), 201)


def _add_timeouts(app: FastAPI, plane: Plane) -> None:
    @app.post(f"{_BASE}/timeout")
    async def set_timeout(request: Request, ident: str) -> Response:
        """Let a running sandbox end this many seconds from now."""
        body = await read_json(request, Timeout)
        await timeouts.set_left(plane, project_of(request), sandbox_id(ident), body.timeout)
        return Response(status_code=204)

    @app.post(f"{_BASE}/refreshes")
    async def refresh(request: Request, ident: str) -> Response:
        """Let a running sandbox end no sooner than this many seconds from now."""
        body = await read_json(request, Refresh)
        await timeouts.extend(plane, project_of(request), sandbox_id(ident), body.duration)
        return Response(status_code=204)
