"""Use cases on template builds: request one, upload its files, begin it, follow it, and do what was begun.

A build is a row from its request on. It is done by one process that holds its lease (controllers/builds.py); where
that goes away, or its worker does, the build ends with an error, and building again goes on from the steps that are
kept.
"""

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterable, Sequence

from space.control import templates
from space.control.plane import Plane
from space.model.build import MAX_COMMAND_BYTES, MAX_STEPS
from space.model.errors import Conflict, InvalidArgument, NotFound, Unavailable
from space.model.ids import ProjectId, WorkerId
from space.model.sandbox import DEFAULT_MEMORY_MIB, DEFAULT_VCPUS, check_spec
from space.model.template_build import (
    DEFAULT_TAG,
    BuildLine,
    BuildStatus,
    TemplateBuild,
    check_tag,
    read_reference,
)
from space.store import builds as rows
from space.store import template_names
from space.store.notices import Channel
from space.telemetry import logger
from space.wire.builds import BuildsClient, StepModel, StoredFiles

BEGIN_S = 1.0
"""How long a request to begin waits until the build is at work; where others are before it, it stays `waiting`."""

LEVELS = ("debug", "info", "warn", "error")
_READY_WITH_START = "sleep 20"
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999; PostgreSQL knows no moment that is much later."""


@dataclasses.dataclass(frozen=True, slots=True)
class BuildWish:
    """What to build. Exactly one of `template` and `image`; a login only for an image."""

    template: str | None
    image: str | None
    username: str | None
    password: str | None
    registry: str | None
    """How an image's registry wants its login, where that is not by name and password: "aws", "gcp"."""

    steps: tuple[StepModel, ...]
    start: str | None
    ready: str | None
    force: bool
    container: bool = False
    """An image's user, directory and command hold, as in a container."""


async def request(
    plane: Plane,
    project: ProjectId,
    name: str,
    tags: Sequence[str],
    vcpus: int | None,
    memory_mib: int | None,
    min_free_mib: int = 0,
    worker: WorkerId | None = None,
) -> TemplateBuild:
    """Make the row of a build of `name[:tag]`; raises InvalidArgument.

    Its files go to the worker that is chosen here, where one answers and none is given.
    """
    vcpus, memory_mib = vcpus or DEFAULT_VCPUS, memory_mib or DEFAULT_MEMORY_MIB
    check_spec(vcpus, memory_mib, {}, {})
    plain, tag = read_reference(name)
    for one in tags:
        check_tag(one)
    wanted = list(dict.fromkeys([*([tag] if tag else []), *tags])) or [DEFAULT_TAG]
    if worker is None:
        with contextlib.suppress(Unavailable):
            worker = plane.workers.place()
    async with plane.db.transaction() as tx:
        await template_names.ensure(tx, project, plain)
        ident = await rows.insert(tx, project, plain, wanted, vcpus, memory_mib, min_free_mib, worker)
    return await get(plane, project, ident)


async def get(plane: Plane, project: ProjectId, build: uuid.UUID) -> TemplateBuild:
    """Return a build; raises NotFound."""
    found = await rows.get(plane.db, project, build)
    if found is None:
        raise NotFound(f"There is no build {build}.")
    return found


async def of_template(plane: Plane, project: ProjectId, name: str, limit: int) -> list[TemplateBuild]:
    """Return the builds of a name, newest first."""
    return await rows.of_name(plane.db, project, name, limit)


async def files(plane: Plane, project: ProjectId, worker: WorkerId | None, name: str) -> StoredFiles | None:
    """Return what the worker of a build has under this name. Raises Unavailable."""
    return await _client(plane, worker).files(project, name)


async def put_files(
    plane: Plane,
    project: ProjectId,
    worker: WorkerId | None,
    name: str,
    body: AsyncIterable[bytes],
    sha256: str | None = None,
) -> StoredFiles:
    """Keep the files of a COPY at the worker of a build. Raises Unavailable, TooLarge, StorageFull, InvalidArgument."""
    return await _client(plane, worker).put_files(project, name, body, sha256)


async def source_of(plane: Plane, project: ProjectId, name: str) -> tuple[str | None, str | None]:
    """Return what FROM names: a template of the project where there is one (template, None), else (None, image)."""
    if await templates.find_or_none(plane, project, name) is not None:
        return name, None
    return None, name


async def worker_with(plane: Plane, project: ProjectId, names: Sequence[str]) -> WorkerId | None:
    """Return a worker that has all these files; None where none are asked for. Raises NotFound, naming one."""
    if not names:
        return None
    lacking = names[0]
    for link in plane.workers.links:
        if link.id is None or not link.connected:
            continue
        lacks = [name for name in names if await BuildsClient(link.client).files(project, name) is None]
        if not lacks:
            return link.id
        lacking = lacks[0]
    raise NotFound(f"The files {lacking} of a COPY are not here; put them to /v1/template-files first.")


def _client(plane: Plane, worker: WorkerId | None) -> BuildsClient:
    return BuildsClient(plane.workers.client(worker or plane.workers.place()))


async def begin(plane: Plane, project: ProjectId, build: uuid.UUID, wish: BuildWish) -> TemplateBuild:
    """Say what a build is to build; returns when it is at work, or in a queue.

    Raises InvalidArgument, NotFound, and Conflict where that was said before. A source that cannot be had, and a step
    that makes no sense, end the build, not the request.
    """
    row = await get(plane, project, build)
    document = _document(wish)
    password = None
    if wish.password is not None:
        password = plane.vault.seal(wish.password, context(build))
    with plane.notices.changes(Channel.BUILD, str(build)) as changed:
        if not await rows.begin(plane.db, project, build, document, password):
            raise Conflict(f"Build {build} has begun already.")
        logger().info("build_begun", build=str(build), name=row.name, steps=len(wish.steps))
        return await _until_at_work(plane, project, build, changed)


def check(wish: BuildWish) -> None:
    """Raise InvalidArgument for what can be built by nobody."""
    if (wish.template is None) == (wish.image is None):
        raise InvalidArgument("Say what to build on: either a template or an image.")
    if len(wish.steps) > MAX_STEPS:
        raise InvalidArgument(f"A build has at most {MAX_STEPS} steps; got {len(wish.steps)}.")
    for name in (wish.template, wish.image, wish.username, wish.password):
        if name is not None and "\0" in name:
            raise InvalidArgument("What to build on, and a login, have no NUL.")
    for step in wish.steps:
        if any("\0" in text for text in (step.kind, *step.args, step.files or "")):
            raise InvalidArgument("A step has no NUL.")
    for command in (wish.start, wish.ready):
        if command is not None and ("\0" in command or len(command.encode()) > MAX_COMMAND_BYTES):
            raise InvalidArgument(f"start and ready have no NUL and at most {MAX_COMMAND_BYTES} bytes.")


def _document(wish: BuildWish) -> dict[str, object]:
    """Return a wish as its row keeps it, without the password. Raises InvalidArgument."""
    check(wish)
    return {
        "template": wish.template,
        "image": wish.image,
        "username": wish.username,
        "registry": wish.registry,
        "steps": [step.model_dump() for step in wish.steps],
        "start": wish.start or None,
        "ready": wish.ready or (_READY_WITH_START if wish.start else None),
        "force": wish.force,
        "container": wish.container,
    }


def context(build: uuid.UUID) -> str:
    """Return what the password of a build's image is sealed for."""
    return f"template build {build}"


async def _until_at_work(plane: Plane, project: ProjectId, build: uuid.UUID, changed: asyncio.Event) -> TemplateBuild:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BEGIN_S):
            while (row := await get(plane, project, build)).status is BuildStatus.WAITING:
                changed.clear()
                await changed.wait()
            return row
    return await get(plane, project, build)


async def lines(
    plane: Plane, build: TemplateBuild, offset: int, limit: int, level: str | None = None
) -> list[BuildLine]:
    """Return lines of a build's log after so many of them; of this level and worse only, where one is named."""
    least = LEVELS.index(level) if level in LEVELS else 0
    return await rows.lines(plane.db, build.id, LEVELS[least:], offset, limit)


async def lines_from(
    plane: Plane, build: TemplateBuild, cursor_ms: int, limit: int, level: str | None = None, *, newest_first: bool
) -> list[BuildLine]:
    """Return lines from a moment on (ms since 1970, 0: the beginning or end), or from there back."""
    least = LEVELS.index(level) if level in LEVELS else 0
    since_ms = min(cursor_ms, _LAST_MS)
    return await rows.lines_from(plane.db, build.id, LEVELS[least:], since_ms, limit, newest_first=newest_first)
