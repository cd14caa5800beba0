"""`/templates`, `/v2/templates` and `/v3/templates`: what there is, and what a new build is to be called.

A template here is a name with an id of its own; builds change what it stands for. Snapshots are deleted here too.
"""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from space.control import builds, snapshots, template_names
from space.control.plane import Plane
from space.e2b import references, template_answers
from space.e2b.request import Body, project_of, read_json, text
from space.model.errors import InvalidArgument, NotFound
from space.model.ids import ProjectId, is_id
from space.model.template import TemplateKind
from space.model.template_build import BuildStatus

MAX_PAGE = 100


class _RequestBuild(Body):
    name: str | None = None
    alias: str | None = None
    tags: list[str] = Field(default_factory=list)
    vcpus: int | None = Field(default=None, alias="cpuCount")
    memory_mib: int | None = Field(default=None, alias="memoryMB")
    min_free_mib: int = Field(default=0, alias="minFreeDiskMb", ge=0, le=1024 * 1024)


class _Update(Body):
    public: bool | None = None


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""
    _add_requests(app, plane)
    _add_lists(app, plane)
    _add_changes(app, plane)


def _add_requests(app: FastAPI, plane: Plane) -> None:
    @app.post("/v3/templates")
    @app.post("/v2/templates")
    async def request_build(request: Request) -> Response:
        """Make the row of a build, and the template's where it is new."""
        body, project = await read_json(request, _RequestBuild), project_of(request)
        name = body.name or body.alias
        if not name:
            raise InvalidArgument("name: say what the template is to be called.")
        row = await builds.request(plane, project, name, body.tags, body.vcpus, body.memory_mib, body.min_free_mib)
        named = await template_names.find(plane, project, row.name)
        return JSONResponse(template_answers.requested(row, public=named.public), 202)


def _add_lists(app: FastAPI, plane: Plane) -> None:
    @app.get("/templates")
    @app.get("/v2/templates")
    async def list_templates(request: Request, limit: int = MAX_PAGE, next_token: str | None = None) -> Response:
        """List templates, newest first."""
        after = request.query_params.get("nextToken") or next_token
        if not 1 <= limit <= MAX_PAGE or (after and not is_id(after)):
            raise InvalidArgument(f"limit must be 1 to {MAX_PAGE}, and nextToken what an answer said.")
        found, following = await template_names.listed(plane, project_of(request), after or None, limit)
        headers = {} if following is None else {"x-next-token": following}
        return JSONResponse([template_answers.template(named) for named in found], headers=headers)

    @app.get("/default-templates")
    async def list_default_templates(request: Request) -> Response:
        """List the templates that come with the service: `base`, where it was built."""
        try:
            base = await template_names.find(plane, project_of(request), "base")
        except NotFound:
            return JSONResponse([])
        return JSONResponse([template_answers.template(base) | {"isDefault": True}])

    @app.get("/templates/aliases/{alias}")
    async def find_alias(request: Request, alias: str) -> Response:
        """Tell whether a name is taken."""
        named = await template_names.find_usable(plane, project_of(request), text(alias))
        return JSONResponse({"templateID": named.id, "public": named.public})

    @app.get("/templates/{template}")
    async def get_template(request: Request, template: str, limit: int = MAX_PAGE) -> Response:
        """Show a template and its builds, newest first; of another project's public one those that succeeded."""
        project = project_of(request)
        named = await template_names.find_usable(plane, project, text(template))
        found = await builds.of_template(plane, named.project, named.name, max(1, min(limit, MAX_PAGE)))
        own = named.project == project
        shown = [template_answers.build(row) for row in found if own or row.status is BuildStatus.READY]
        return JSONResponse(template_answers.template(named) | {"builds": shown})


def _add_changes(app: FastAPI, plane: Plane) -> None:
    @app.delete("/templates/{template}")
    async def delete_template(request: Request, template: str) -> Response:
        """Delete a template with all its builds, or a snapshot."""
        await _delete(plane, project_of(request), text(template))
        return Response(status_code=204)

    @app.patch("/templates/{template}")
    async def update(request: Request, template: str) -> Response:
        """Let other projects use it, or no longer."""
        await _update(request, template)
        return Response(status_code=200)

    @app.patch("/v2/templates/{template}")
    async def update_and_tell(request: Request, template: str) -> Response:
        """Likewise, and tell its names."""
        return JSONResponse({"names": [await _update(request, template)]})

    async def _update(request: Request, template: str) -> str:
        body, project = await read_json(request, _Update), project_of(request)
        named = await template_names.find(plane, project, text(template))
        if body.public is not None:
            named = await template_names.publish(plane, project, named.name, public=body.public)
        return named.name


async def _delete(plane: Plane, project: ProjectId, reference: str) -> None:
    try:
        found = await references.find(plane, project, reference)
    except NotFound:
        found = None  # a template none of whose builds has succeeded
    if found is not None and found.kind is TemplateKind.SNAPSHOT:
        await snapshots.delete(plane, project, found.digest)
    else:
        await template_names.delete(plane, project, reference)
