"""Builds of templates: files, begin, status and logs.

Files are uploaded to a link that needs no key: it is signed for one project, worker and name, and expires.
"""

import time
import uuid
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlencode

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from space.control import builds, template_names
from space.control.builds import BuildWish
from space.control.plane import Plane
from space.e2b import template_answers
from space.e2b.request import Body, project_of, read_json, text
from space.model.build import is_files_name
from space.model.errors import InvalidArgument, NotFound, Unauthorized
from space.model.ids import ProjectId, WorkerId
from space.model.template_build import TemplateBuild
from space.wire.builds import StepModel

UPLOAD = "/template-files"
LINK_S = 2 * 3600
"""How long a link is good for: an upload may take an hour, and is asked for before others."""

_SIGNED = ("project", "worker", "name", "expires")
MAX_LINES = 100


class _Step(Body):
    type: str
    args: list[str] = Field(default_factory=list)
    files_hash: str | None = Field(default=None, alias="filesHash")
    force: bool = False

    def model(self) -> StepModel:
        """Return it as a worker reads it."""
        return StepModel(kind=self.type, args=self.args, files=self.files_hash, force=self.force)


class _Registry(Body):
    type: Literal["registry", "aws", "gcp"]
    username: str | None = None
    password: str | None = None


class _Begin(Body):
    image: str | None = Field(default=None, alias="fromImage")
    template: str | None = Field(default=None, alias="fromTemplate")
    registry: _Registry | None = Field(default=None, alias="fromImageRegistry")
    force: bool = False
    steps: list[_Step] = Field(default_factory=list)
    start: str | None = Field(default=None, alias="startCmd")
    ready: str | None = Field(default=None, alias="readyCmd")

    def wish(self) -> BuildWish:
        """Return what to build."""
        login = self.registry if self.registry is not None and self.registry.type == "registry" else None
        return BuildWish(
            template=self.template or None,
            image=self.image or None,
            username=None if login is None else login.username,
            password=None if login is None else login.password,
            registry=None if self.registry is None or login is not None else self.registry.type,
            steps=tuple(step.model() for step in self.steps),
            start=self.start,
            ready=self.ready,
            force=self.force,
        )


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`."""

    @app.get("/templates/{template}/files/{name}")
    async def link_for_files(request: Request, template: str, name: str) -> Response:
        """Tell whether files are here already, and where to put them."""
        project, files = project_of(request), text(name)
        if not is_files_name(files):
            raise InvalidArgument(
                "The hash of the files has at most 128 characters of a-z, A-Z, 0-9, '_', '.' and '-'."
            )
        named = await template_names.find(plane, project, text(template))
        newest = await builds.of_template(plane, project, named.name, 1)
        worker = (newest[0].worker if newest else None) or plane.workers.place()
        present = await builds.files(plane, project, worker, files) is not None
        return JSONResponse({"present": present, "url": _link(plane, request, project, worker, files)}, 201)

    @app.put(UPLOAD)
    async def put_files(request: Request) -> Response:
        """Keep what is sent, whole or not at all."""
        project, worker, name = _allowed(plane, request.query_params)
        stored = await builds.put_files(plane, project, worker, name, request.stream())
        return JSONResponse({"sizeBytes": stored.size_bytes}, 200)

    @app.post("/v2/templates/{template}/builds/{build}")
    async def begin(request: Request, template: str, build: str) -> Response:
        """Say what to build, and have it built."""
        row = await _row(plane, request, template, build)
        await builds.begin(plane, row.project, row.id, (await read_json(request, _Begin)).wish())
        return Response(status_code=202)

    @app.get("/templates/{template}/builds/{build}/status")
    async def status(request: Request, template: str, build: str, limit: int = MAX_LINES) -> Response:
        """Tell where a build is, and its log after so many lines."""
        given = request.query_params
        row = await _row(plane, request, template, build)
        offset = _number(given.get("logsOffset"))
        lines = await builds.lines(plane, row, offset, _limit(limit), given.get("level"))
        return JSONResponse(template_answers.status(row, lines))

    @app.get("/templates/{template}/builds/{build}/logs")
    async def logs(request: Request, template: str, build: str, limit: int = MAX_LINES) -> Response:
        """Return lines of a log, in either direction, from a moment on."""
        given = request.query_params
        row = await _row(plane, request, template, build)
        newest_first = given.get("direction", "forward") == "backward"
        cursor = _number(given.get("cursor"))
        found = await builds.lines_from(
            plane, row, cursor, _limit(limit), given.get("level"), newest_first=newest_first
        )
        return JSONResponse({"logs": [template_answers.entry(line) for line in found]})


async def _row(plane: Plane, request: Request, template: str, build: str) -> TemplateBuild:
    """Return the build that a path names; raises NotFound."""
    try:
        ident = uuid.UUID(build)
    except ValueError:
        raise NotFound(f"build {build[:40]!r} was not found") from None
    row = await builds.get(plane, project_of(request), ident)
    if text(template) not in (row.template_id, row.name):
        raise NotFound(f"build {build[:40]!r} was not found")
    return row


def _number(text: str | None) -> int:
    if text is None or text == "":
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidArgument("An offset is a number that is not negative.")
    return int(text)


def _limit(limit: int) -> int:
    if limit < 0:
        raise InvalidArgument("limit must not be negative.")
    return min(limit, MAX_LINES)


def _link(plane: Plane, request: Request, project: ProjectId, worker: WorkerId, name: str) -> str:
    """Return where a client that reached us here can put its files."""
    expires = str(int(time.time()) + LINK_S)
    query = {"project": project, "worker": worker, "name": name, "expires": expires}
    signature = plane.vault.sign(_text(query), UPLOAD)
    scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else "http"
    return f"{scheme}://{request.headers.get('host', '')}{UPLOAD}?{urlencode(query | {'signature': signature})}"


def _allowed(plane: Plane, query: Mapping[str, str]) -> tuple[ProjectId, WorkerId, str]:
    """Return what a link is for; raises Unauthorized for one that is not ours, or is too old."""
    if not plane.vault.signed(_text(query), UPLOAD, query.get("signature", "")):
        raise Unauthorized("This link was not made here, or was changed.")
    if int(query["expires"]) < time.time():
        raise Unauthorized("This link has expired; ask for another.")
    return ProjectId(query["project"]), WorkerId(query["worker"]), query["name"]


def _text(query: Mapping[str, str]) -> str:
    return "\n".join(query.get(part, "") for part in _SIGNED)
