"""What can be done with a sandbox while it lives: `PATCH /v1/sandboxes/{id}` and `POST` to what is below it.

And `/v1/snapshots`, what comes of the last of these.
"""

from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from space.api.body import documented, read_json
from space.api.models import (
    ChangeSandbox,
    ForkedSandbox,
    ForkResults,
    ForkSandbox,
    OperationModel,
    SandboxModel,
    ShownTemplate,
    SnapshotList,
    SuspendSandbox,
    TakeSnapshot,
)
from space.api.quick_route import QuickRoute
from space.api.sandboxes import Wait, accepted, checked_id, project_of
from space.control import forks, lifecycle, snapshots
from space.control.plane import Plane
from space.model.operation import OperationKind

_BASE = "/v1/sandboxes/{sandbox_id}"
_ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"model": OperationModel, "description": "With `wait=0`: it is being done."}
}


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""
    _add_verbs(app, plane)
    _add_copies(app, plane)
    _add_snapshots(app, plane)

    @app.patch(
        _BASE,
        tags=["sandboxes"],
        response_model=SandboxModel,
        openapi_extra=documented(ChangeSandbox, required=True),
    )
    async def change_sandbox(request: Request, sandbox_id: str) -> SandboxModel:
        """Change labels and deadlines, in whatever state. Connecting to a sandbox never changes them; this does."""
        ident = checked_id(sandbox_id)
        body = await read_json(request, ChangeSandbox)
        changed = await lifecycle.change(plane, project_of(request), ident, body.changes())
        return SandboxModel.of(changed, plane.clock)


def _add_verbs(app: FastAPI, plane: Plane) -> None:
    quick = APIRouter(route_class=QuickRoute)

    async def ask(
        request: Request, sandbox_id: str, kind: OperationKind, wait: str, *, memory: bool = True
    ) -> Response:
        waiting = wait in ("1", "true")
        row, operation = await lifecycle.ask(
            plane, project_of(request), checked_id(sandbox_id), kind, memory=memory, wait=waiting
        )
        if operation is not None and not waiting:
            return accepted(operation)
        return Response(SandboxModel.of(row, plane.clock).model_dump_json(), media_type="application/json")

    @quick.post(f"{_BASE}/pause", tags=["sandboxes"], response_model=SandboxModel, responses=_ACCEPTED)
    async def pause_sandbox(request: Request, sandbox_id: str, wait: Wait = "1") -> Response:
        """Stop its vCPUs; memory stays, streams stay open. Fine for one that is paused."""
        return await ask(request, sandbox_id, OperationKind.PAUSE, wait)

    @quick.post(f"{_BASE}/resume", tags=["sandboxes"], response_model=SandboxModel, responses=_ACCEPTED)
    async def resume_sandbox(request: Request, sandbox_id: str, wait: Wait = "1") -> Response:
        """Let a paused one go on, or restore a suspended one. Fine for one that runs."""
        return await ask(request, sandbox_id, OperationKind.RESUME, wait)

    @quick.post(
        f"{_BASE}/suspend",
        tags=["sandboxes"],
        response_model=SandboxModel,
        responses=_ACCEPTED,
        openapi_extra=documented(SuspendSandbox, required=False),
    )
    async def suspend_sandbox(request: Request, sandbox_id: str, wait: Wait = "1") -> Response:
        """Put it to storage with its memory; nothing of it stays in RAM. Fine for one that is suspended."""
        body = await read_json(request, SuspendSandbox)
        return await ask(request, sandbox_id, OperationKind.SUSPEND, wait, memory=body.memory)

    @quick.post(f"{_BASE}/restore", tags=["sandboxes"], response_model=SandboxModel, responses=_ACCEPTED)
    async def restore_sandbox(request: Request, sandbox_id: str, wait: Wait = "1") -> Response:
        """Bring a suspended one back where it was, or let a paused one go on. Fine for one that runs.

        Without room for it the answer is 503 `no_capacity`, and it stays suspended.
        """
        return await ask(request, sandbox_id, OperationKind.RESTORE, wait)

    app.include_router(quick)


def _add_copies(app: FastAPI, plane: Plane) -> None:
    @app.post(
        f"{_BASE}/fork",
        tags=["sandboxes"],
        status_code=201,
        response_model=ForkResults,
        responses={202: {"model": ForkResults, "description": "With `wait=0`: they are being made, one by one."}},
        openapi_extra=documented(ForkSandbox, required=False),
    )
    async def fork_sandbox(request: Request, sandbox_id: str, wait: Wait = "1") -> Response:
        """Make running copies of a running or suspended sandbox, which goes on. Answers when they run.

        Where not one copy could be made, the answer is the error of the first.
        """
        ident = checked_id(sandbox_id)
        body = await read_json(request, ForkSandbox)
        waiting = wait in ("1", "true")
        wish = forks.ForkWish(body.count, body.env, body.labels, body.changes())
        children = await forks.fork(plane, project_of(request), ident, wish, wait=waiting)
        if all(child.error for child in children) and children[0].error is not None:
            raise children[0].error
        content = ForkResults(results=[ForkedSandbox.of(child, plane.clock) for child in children])
        return JSONResponse(content.model_dump(mode="json"), 201 if waiting else 202)

    @app.post(
        f"{_BASE}/snapshots",
        tags=["snapshots"],
        status_code=201,
        response_model=ShownTemplate,
        responses=_ACCEPTED,
        openapi_extra=documented(TakeSnapshot, required=False),
    )
    async def take_snapshot(request: Request, sandbox_id: str, wait: Wait = "1") -> Response:
        """Freeze a copy of a running or suspended sandbox, which goes on; new sandboxes can be made of it."""
        ident = checked_id(sandbox_id)
        body = await read_json(request, TakeSnapshot)
        waiting = wait in ("1", "true")
        taken, operation = await snapshots.take(
            plane, project_of(request), ident, body.name, memory=body.memory, wait=waiting
        )
        if taken is None:
            return accepted(operation)
        content = ShownTemplate.of(taken).model_dump(mode="json")
        return JSONResponse(content, 201, {"location": f"/v1/snapshots/{taken.digest}"})


def _add_snapshots(app: FastAPI, plane: Plane) -> None:
    @app.get("/v1/snapshots", tags=["snapshots"])
    async def list_snapshots(request: Request) -> SnapshotList:
        """List the project's snapshots, newest first."""
        found = await snapshots.listed(plane, project_of(request))
        return SnapshotList(snapshots=[ShownTemplate.of(snapshot) for snapshot in found])

    @app.get("/v1/snapshots/{snapshot}", tags=["snapshots"])
    async def get_snapshot(request: Request, snapshot: str) -> ShownTemplate:
        """Show a snapshot, by name or digest."""
        return ShownTemplate.of(await snapshots.find(plane, project_of(request), snapshot))

    @app.delete("/v1/snapshots/{snapshot}", tags=["snapshots"], status_code=204)
    async def delete_snapshot(request: Request, snapshot: str) -> Response:
        """Delete a snapshot, by name or digest; refused while a live sandbox started from it."""
        await snapshots.delete(plane, project_of(request), snapshot)
        return Response(status_code=204)
