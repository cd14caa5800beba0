"""Tags of templates."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from space.control import template_names
from space.control.plane import Plane
from space.e2b import template_answers
from space.e2b.request import Body, project_of, read_json, text
from space.model.errors import InvalidArgument
from space.model.template_build import check_tag

MAX_TAGS = 100


class _Assign(Body):
    target: str
    tags: list[str]


class _Remove(Body):
    name: str
    tags: list[str]


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    @app.post("/templates/tags")
    async def assign(request: Request) -> Response:
        """Let tags stand for what another tag stands for."""
        body, project = await read_json(request, _Assign), project_of(request)
        _check(body.tags)
        tag = await template_names.assign(plane, project, body.target, body.tags)
        return JSONResponse({"tags": body.tags, "buildID": template_answers.build_id(tag.build, tag.digest)}, 201)

    @app.delete("/templates/tags")
    async def remove(request: Request) -> Response:
        """Take tags away."""
        body = await read_json(request, _Remove)
        _check(body.tags)
        await template_names.unassign(plane, project_of(request), body.name, body.tags)
        return Response(status_code=204)

    @app.get("/templates/{template}/tags")
    async def list_tags(request: Request, template: str) -> Response:
        """List the tags of a template, the last set first."""
        found = await template_names.tags(plane, project_of(request), text(template))
        return JSONResponse([template_answers.tag(one) for one in found])

    @app.get("/templates/{template}/tags/count")
    async def count(request: Request, template: str) -> Response:
        """Tell how many there are."""
        return JSONResponse({"total": len(await template_names.tags(plane, project_of(request), text(template)))})

    @app.get("/templates/{template}/tags/exists")
    async def exists(request: Request, template: str, tag: str) -> Response:
        """Tell whether there is this one."""
        check_tag(tag)
        found = await template_names.tags(plane, project_of(request), text(template))
        return JSONResponse({"exists": any(one.tag == tag for one in found), "normalizedTag": tag})


def _check(tags: list[str]) -> None:
    if not 1 <= len(tags) <= MAX_TAGS:
        raise InvalidArgument(f"tags: 1 to {MAX_TAGS} at once.")
