"""`/v1/sandboxes` and `/v1/operations`."""

from typing import Annotated, Literal

import pydantic
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response

from space.api.body import documented, read_json
from space.api.models import (
    CreateSandbox,
    EventList,
    EventModel,
    OperationModel,
    SandboxList,
    SandboxModel,
    UsageList,
    UsageModel,
)
from space.control import sandboxes, usage
from space.control.access import CALLER
from space.control.plane import Plane
from space.model.errors import NotFound
from space.model.ids import OperationId, ProjectId, SandboxId, is_id
from space.model.lifecycle import State
from space.model.operation import IdempotencyKey, Operation, idempotency_key
from space.model.sandbox import DEFAULT_MEMORY_MIB, DEFAULT_VCPUS, Sandbox
from space.model.sandbox_query import ALIVE, SandboxQuery

Wait = Annotated[
    Literal["0", "1", "true", "false"], Query(description="0: answer 202 with an operation, and do it meanwhile.")
]
Label = Annotated[str, pydantic.StringConstraints(pattern=r"^[^:\x00]+:[^\x00]*$")]
Labels = Annotated[
    list[Label], Query(description="`name:value`; repeat it to ask for several, all of which must be there.")
]


def project_of(request: Request) -> ProjectId:
    """Return the project of an authenticated request."""
    project: ProjectId = request.scope[CALLER].project
    return project


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""
    _add_records(app, plane)

    @app.post(
        "/v1/sandboxes",
        tags=["sandboxes"],
        status_code=201,
        response_model=SandboxModel,
        responses={202: {"model": OperationModel, "description": "With `wait=0`: it is being done."}},
        openapi_extra=documented(CreateSandbox, required=False),
    )
    async def create_sandbox(request: Request, wait: Wait = "1") -> Response:
        """Make a sandbox. Answers when its agent has answered.

        With a header `Idempotency-Key` a repeated request gives the same sandbox instead of another one.
        """
        body = await read_json(request, CreateSandbox)
        wish = sandboxes.Wish(
            body.template,
            body.vcpus,
            body.memory_mib,
            body.env,
            body.labels,
            body.deadlines(),
            body.policy,
            public_ports=body.public_ports,
            volumes=[(mount.name, mount.path) for mount in body.volumes],
        )
        key = _idempotency_key(request, body)
        if wait in ("1", "true"):
            return created(plane, await sandboxes.create(plane, project_of(request), wish, key))
        return accepted(await sandboxes.begin(plane, project_of(request), wish, key))

    @app.get("/v1/sandboxes", tags=["sandboxes"])
    async def list_sandboxes(
        request: Request,
        label: Labels = [],  # noqa: B006 - read by FastAPI, never changed
        state: Annotated[list[State], Query(description="Repeatable; without it, all but deleted ones.")] = [],  # noqa: B006
        cursor: Annotated[
            str | None, Query(pattern="^[a-z0-9]{20}$", description="`next_cursor` of the page before.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> SandboxList:
        """List sandboxes, newest first."""
        labels = [(name, value) for name, _, value in (text.partition(":") for text in label)]
        wanted = dict(labels)
        if any(wanted[name] != value for name, value in labels):  # two values of one label: no sandbox has both
            return SandboxList(sandboxes=[], next_cursor=None)
        query = SandboxQuery(frozenset(state) or ALIVE, wanted)
        after = None if cursor is None else SandboxId(cursor)
        found = await sandboxes.listed(plane, project_of(request), query, limit=limit + 1, after=after)
        shown = [SandboxModel.of(sandbox, plane.clock) for sandbox in found[:limit]]
        return SandboxList(sandboxes=shown, next_cursor=found[limit - 1].id if len(found) > limit else None)

    @app.get("/v1/sandboxes/{sandbox_id}", tags=["sandboxes"])
    async def get_sandbox(request: Request, sandbox_id: str) -> SandboxModel:
        """Show one sandbox."""
        found = await sandboxes.get(plane, project_of(request), checked_id(sandbox_id))
        return SandboxModel.of(found, plane.clock)

    @app.delete(
        "/v1/sandboxes/{sandbox_id}",
        tags=["sandboxes"],
        status_code=204,
        responses={202: {"model": OperationModel, "description": "With `wait=0`: it is being done."}},
    )
    async def delete_sandbox(request: Request, sandbox_id: str, wait: Wait = "1") -> Response:
        """Delete a sandbox in whatever state. Answers when everything is given back; again for one already deleted."""
        waiting = wait in ("1", "true")
        operation = await sandboxes.delete(plane, project_of(request), checked_id(sandbox_id), wait=waiting)
        return Response(status_code=204) if waiting or operation is None else accepted(operation)


def _add_records(app: FastAPI, plane: Plane) -> None:
    @app.get("/v1/sandboxes/{sandbox_id}/events", tags=["sandboxes"])
    async def list_events(
        request: Request,
        sandbox_id: str,
        after: Annotated[int, Query(ge=0, le=2**62)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    ) -> EventList:
        """List what happened to a sandbox, oldest first; for some days after it was deleted too."""
        found = await sandboxes.events_of(plane, project_of(request), checked_id(sandbox_id), after, limit)
        return EventList(events=[EventModel.of(event) for event in found])

    @app.get("/v1/sandboxes/{sandbox_id}/usage", tags=["sandboxes"])
    async def show_usage(request: Request, sandbox_id: str) -> UsageList:
        """Show what a sandbox uses of its processors, memory and disk, and used in the last hour."""
        found = await usage.lately(plane, project_of(request), checked_id(sandbox_id))
        return UsageList(samples=[UsageModel.of(sample) for sample in found])

    @app.get("/v1/operations/{operation_id}", tags=["operations"])
    async def get_operation(request: Request, operation_id: str) -> OperationModel:
        """Show how far an operation is."""
        if not is_id(operation_id):
            raise NotFound("There is no such operation.")
        found = await sandboxes.operation_of(plane, project_of(request), OperationId(operation_id))
        return OperationModel.of(found)


def created(plane: Plane, sandbox: Sandbox) -> Response:
    """Return the answer that shows a new sandbox."""
    content = SandboxModel.of(sandbox, plane.clock).model_dump(mode="json")
    return JSONResponse(content, 201, {"location": f"/v1/sandboxes/{sandbox.id}"})


def accepted(operation: Operation) -> Response:
    """Return the answer for what is being done."""
    content = OperationModel.of(operation).model_dump(mode="json")
    return JSONResponse(content, 202, {"location": f"/v1/operations/{operation.id}"})


def checked_id(text: str) -> SandboxId:
    """Return the id in a path; raises NotFound for what cannot be one."""
    if not is_id(text):
        raise NotFound("There is no such sandbox: an id is 20 characters of a-z and 0-9.")
    return SandboxId(text)


def _idempotency_key(request: Request, body: CreateSandbox) -> IdempotencyKey | None:
    text = request.headers.get("idempotency-key")
    if text is None:
        return None
    # Two texts of the same request (order of keys, spaces, defaults spelled out) are the same request.
    plain = {
        "env": _sorted(body.env),
        "labels": _sorted(body.labels),
        "vcpus": body.vcpus or DEFAULT_VCPUS,
        "memory_mib": body.memory_mib or DEFAULT_MEMORY_MIB,
    }
    return idempotency_key(text, body.model_copy(update=plain).model_dump_json())


def _sorted(mapping: dict[str, str]) -> dict[str, str]:
    return dict(sorted(mapping.items()))
