"""`/v1/templates`."""

import contextlib
from collections.abc import AsyncGenerator

import pydantic
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from space.api.body import documented, read_json
from space.api.models import CreateTemplate, ShownTemplate, TemplateList
from space.api.sandboxes import project_of
from space.control import template_names, templates
from space.control.plane import Plane
from space.model.errors import SpaceError
from space.wire.templates import BuildDone, BuildFailedLine, BuildLog, BuildTemplate, error_line

NDJSON = "application/x-ndjson"


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    @app.post(
        "/v1/templates",
        tags=["templates"],
        response_class=StreamingResponse,
        openapi_extra=documented(CreateTemplate, required=True),
        responses={
            200: {
                "description": "One line of JSON each: `log` while it is built, last `done` or `failed`.",
                "content": {NDJSON: {"schema": {"type": "string"}}},
            }
        },
    )
    async def build_template(request: Request) -> Response:
        """Build a template and stream the log."""
        body = await read_json(request, CreateTemplate)
        wish = BuildTemplate.model_validate(body.model_dump())
        lines = templates.build(plane, project_of(request), wish)
        first = await anext(lines)  # what keeps the build from starting is an ordinary error answer
        return StreamingResponse(_lines(first, lines), media_type=NDJSON)

    @app.get("/v1/templates", tags=["templates"])
    async def list_templates(request: Request) -> TemplateList:
        """List the project's templates and snapshots, newest first."""
        found = await templates.listed(plane, project_of(request))
        return TemplateList(templates=[ShownTemplate.of(template) for template in found])

    @app.get("/v1/templates/{template}", tags=["templates"])
    async def get_template(request: Request, template: str) -> ShownTemplate:
        """Show a template, by name or digest."""
        return ShownTemplate.of(await templates.find(plane, project_of(request), template))

    @app.delete("/v1/templates/{template}", tags=["templates"], status_code=204)
    async def delete_template(request: Request, template: str) -> Response:
        """Delete a template, by name or digest; refused while a live sandbox started from it.

        By a name, what another name or tag stands for stays, and only this name goes.
        """
        await template_names.delete_meant(plane, project_of(request), template)
        return Response(status_code=204)


async def _lines(
    first: pydantic.BaseModel, rest: AsyncGenerator[BuildLog | BuildDone | BuildFailedLine]
) -> AsyncGenerator[str]:
    async with contextlib.aclosing(rest):
        yield first.model_dump_json() + "\n"
        try:
            async for line in rest:
                yield line.model_dump_json() + "\n"
        except SpaceError as error:
            yield error_line(error).model_dump_json() + "\n"
