"""`/v1/template-builds` and `/v1/template-files`: templates from steps."""

import uuid
from typing import Annotated

from fastapi import FastAPI, Query, Request

from space.api.body import documented, read_json
from space.api.build_models import CreateTemplateBuild, StoredTemplateFiles, TemplateBuildModel
from space.api.sandboxes import project_of
from space.control import builds
from space.control.builds import BuildWish
from space.control.plane import Plane
from space.model.errors import NotFound

MAX_LINES = 1000
_SHA256 = 64


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    @app.post(
        "/v1/template-builds",
        tags=["templates"],
        status_code=202,
        openapi_extra=documented(CreateTemplateBuild, required=True),
    )
    async def build_template_from_steps(request: Request) -> TemplateBuildModel:
        """Begin to build a template from steps; ask for its log and its end at its id."""
        body, project = await read_json(request, CreateTemplateBuild), project_of(request)
        steps = tuple(step.model() for step in body.steps)
        for step in steps:
            step.to_step()  # what makes no sense is told at once
        worker = await builds.worker_with(plane, project, [step.files for step in steps if step.files])
        template, image = await builds.source_of(plane, project, body.source)
        login = body.registry
        wish = BuildWish(
            template=template,
            image=image,
            username=None if login is None else login.username,
            password=None if login is None else login.password.get_secret_value(),
            registry=None,
            steps=steps,
            start=body.start,
            ready=body.ready,
            force=body.force,
            container=True,
        )
        builds.check(wish)
        row = await builds.request(plane, project, body.name, body.tags, body.vcpus, body.memory_mib, worker=worker)
        return TemplateBuildModel.of(await builds.begin(plane, project, row.id, wish), [])

    @app.get("/v1/template-builds/{build}", tags=["templates"])
    async def get_template_build(
        request: Request, build: uuid.UUID, after: Annotated[int, Query(ge=0, lt=1 << 31)] = 0
    ) -> TemplateBuildModel:
        """Show a build, and its log after so many lines (at most 1000 at once)."""
        row = await builds.get(plane, project_of(request), build)
        return TemplateBuildModel.of(row, await builds.lines(plane, row, after, MAX_LINES))

    @app.get("/v1/template-files/{sha256}", tags=["templates"])
    async def get_template_files(request: Request, sha256: str) -> StoredTemplateFiles:
        """Tell whether an archive is here already."""
        found = await builds.files(plane, project_of(request), None, _checked(sha256))
        if found is None:
            raise NotFound("There are no files of this digest.")
        return StoredTemplateFiles(**found.model_dump())

    @app.put(
        "/v1/template-files/{sha256}",
        tags=["templates"],
        openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
    )
    async def put_template_files(request: Request, sha256: str) -> StoredTemplateFiles:
        """Put an archive (tar, gzipped or not) for a COPY, under the SHA-256 of its bytes."""
        name = _checked(sha256)
        stored = await builds.put_files(plane, project_of(request), None, name, request.stream(), name)
        return StoredTemplateFiles(**stored.model_dump())


def _checked(sha256: str) -> str:
    if len(sha256) != _SHA256 or not set(sha256) <= set("0123456789abcdef"):
        raise NotFound("The name of files is a SHA-256: 64 hexadecimal digits.")
    return sha256
