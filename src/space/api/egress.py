"""What may leave a sandbox and what was decided: `.../policy`, `.../egress`, `.../asks`, and `/v1/project/policy`."""

import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response, StreamingResponse

from space.api.body import documented, read_json
from space.api.egress_models import (
    Answer,
    HeldList,
    HeldRequest,
    PolicyDocument,
    ProjectPolicy,
    SandboxPolicy,
    line_of,
)
from space.api.sandboxes import checked_id, project_of
from space.api.templates import NDJSON
from space.control import egress, egress_events
from space.control.plane import Plane
from space.model.egress import EgressRecord

_BASE = "/v1/sandboxes/{sandbox_id}"
_KEEPALIVE_S = 15.0
_STREAM: dict[int | str, dict[str, object]] = {
    200: {
        "description": "One line of JSON each: `verdict`, `traffic`, `ask`, `alarm`, `refused`, `gap`; where it "
        "follows also `keepalive`. Ask again with `after` = the last `number`.",
        "content": {NDJSON: {"schema": {"type": "string"}}},
    }
}


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""
    _add_policies(app, plane)
    _add_events(app, plane)
    _add_asks(app, plane)


def _add_policies(app: FastAPI, plane: Plane) -> None:
    @app.get(f"{_BASE}/policy", tags=["egress"])
    async def get_policy(request: Request, sandbox_id: str) -> SandboxPolicy:
        """Show what may leave a sandbox."""
        return SandboxPolicy.of(await egress.get(plane, project_of(request), checked_id(sandbox_id)))

    @app.put(f"{_BASE}/policy", tags=["egress"], openapi_extra=documented(PolicyDocument, required=True))
    async def put_policy(request: Request, sandbox_id: str) -> SandboxPolicy:
        """Replace what may leave a sandbox. Answers when it holds, and what it no longer allows has ended."""
        ident, project = checked_id(sandbox_id), project_of(request)
        body = await read_json(request, PolicyDocument)
        return SandboxPolicy.of(await egress.put(plane, project, ident, body.root))

    @app.get("/v1/project/policy", tags=["egress"])
    async def get_ceiling(request: Request) -> ProjectPolicy:
        """Show what no sandbox of the project exceeds."""
        return ProjectPolicy.of(await egress.ceiling(plane, project_of(request)))

    @app.put("/v1/project/policy", tags=["egress"], openapi_extra=documented(PolicyDocument, required=True))
    async def put_ceiling(request: Request) -> ProjectPolicy:
        """Replace what no sandbox of the project exceeds, those that run included."""
        body = await read_json(request, PolicyDocument)
        await egress.put_ceiling(plane, project_of(request), body.root)
        return ProjectPolicy.of(body.root)

    @app.delete("/v1/project/policy", tags=["egress"], status_code=204)
    async def delete_ceiling(request: Request) -> Response:
        """Leave each sandbox of the project to its own policy."""
        await egress.put_ceiling(plane, project_of(request), None)
        return Response(status_code=204)


def _add_events(app: FastAPI, plane: Plane) -> None:
    @app.get(f"{_BASE}/egress", tags=["egress"], response_class=StreamingResponse, responses=_STREAM)
    async def stream_egress(
        request: Request,
        sandbox_id: str,
        after: Annotated[int, Query(ge=0, le=2**62)] = 0,
        limit: Annotated[int, Query(ge=1, le=10_000, description="Without `follow`.")] = 1000,
        follow: Annotated[Literal["0", "1", "true", "false"], Query(description="1: go on as it happens.")] = "0",
    ) -> Response:
        """Stream what was decided about a sandbox's traffic, oldest first; for some days after it was deleted too."""
        project, ident = project_of(request), checked_id(sandbox_id)
        if follow in ("0", "false"):
            found = await egress_events.listed(plane, project, ident, after, limit)
            return Response("".join(map(_line, found)), media_type=NDJSON)
        await egress_events.listed(plane, project, ident, after, 1)  # what is not there is an ordinary error answer
        pages = egress_events.followed(plane, project, ident, after, _KEEPALIVE_S)
        return StreamingResponse(_lines(pages), media_type=NDJSON)


def _line(record: EgressRecord) -> str:
    return json.dumps(line_of(record)) + "\n"


async def _lines(pages: AsyncGenerator[list[EgressRecord]]) -> AsyncGenerator[str]:
    async with contextlib.aclosing(pages):
        async for page in pages:
            yield "".join(map(_line, page)) or '{"type": "keepalive"}\n'


def _add_asks(app: FastAPI, plane: Plane) -> None:
    @app.get(f"{_BASE}/asks", tags=["egress"])
    async def list_asks(request: Request, sandbox_id: str) -> HeldList:
        """List the requests that wait for an answer (`ask` in the policy)."""
        found = await egress_events.held(plane, project_of(request), checked_id(sandbox_id))
        return HeldList(
            asks=[
                HeldRequest(
                    id=one.event.seq,
                    at=one.event.time,
                    until=one.until,
                    protocol=one.event.protocol,
                    host=one.event.name,
                    port=one.event.port,
                    method=one.event.method,
                    path=one.event.path,
                )
                for one in found
            ]
        )

    @app.post(
        f"{_BASE}/asks/{{ask_id}}", tags=["egress"], status_code=204, openapi_extra=documented(Answer, required=True)
    )
    async def answer_ask(request: Request, sandbox_id: str, ask_id: int) -> Response:
        """Let a request that waits go, this once, or refuse it now."""
        ident, project = checked_id(sandbox_id), project_of(request)
        body = await read_json(request, Answer)
        await egress_events.answer(plane, project, ident, ask_id, allow=body.allow)
        return Response(status_code=204)
