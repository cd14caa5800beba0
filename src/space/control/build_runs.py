"""Does one template build that this process holds: a worker does it, and the row keeps its log and its end."""

import asyncio
import contextlib
import dataclasses
import time

import pydantic

from space.control import builds, templates
from space.control.plane import Plane
from space.host.tasks import first
from space.model.build import BASE
from space.model.errors import BuildFailed, NotFound, SpaceError, Unavailable
from space.model.ids import ProjectId, TemplateDigest
from space.model.policy_presets import PRESETS
from space.model.template_build import BuildLine, TemplateBuild
from space.store import builds as rows
from space.store import policies, template_names
from space.store import templates as template_rows
from space.telemetry import logger
from space.wire.builds import (
    BuildsClient,
    BuildSteps,
    FromImage,
    FromTemplate,
    RegistryLogin,
    StepLog,
    StepModel,
    StepsDone,
    StepsFailed,
)
from space.wire.gateway import EgressOrder

LEASE_S = 10.0
_RENEW_S = 2.0
_FLUSH_S = 0.2
_WORKER_S, _RETRY_S = 30.0, 0.2
"""How long a build waits for a worker that is just being restarted, and how often it looks."""

_MAX_TEXT = 4000


class _Wish(pydantic.BaseModel):
    """What a row's `wish` holds; see control/builds.py."""

    template: str | None
    image: str | None
    username: str | None
    registry: str | None = None
    steps: list[StepModel]
    start: str | None
    ready: str | None
    force: bool
    container: bool = False


class _Overtaken(Exception):
    """The build is not ours any more: its template was deleted, or this process was too slow."""


async def carry_out(plane: Plane, build: TemplateBuild) -> None:
    """Do a build that was claimed, to its end; whatever that is, the row has it. Raises Unavailable (the database)."""
    log = _Log(plane, build)
    try:
        end = await first(_work(plane, build, log), log.keep(), _hold(plane, build))
    except _Overtaken:
        logger().info("build_overtaken", build=str(build.id))
        return
    except SpaceError as error:
        end = StepsFailed(code=error.slug, detail=str(error), step=BASE)
    except Exception:  # noqa: BLE001 - a build must not stay `building` for an error of ours
        logger().exception("build_crashed", build=str(build.id))
        end = StepsFailed(code=SpaceError.code, detail="Internal error; see the api's log.", step=BASE)
    await log.flush()
    await _record(plane, build, end)


async def _hold(plane: Plane, build: TemplateBuild) -> StepsDone | StepsFailed:
    while True:
        await asyncio.sleep(_RENEW_S)
        with contextlib.suppress(Unavailable):  # where that lasts, others give the build up
            if not await rows.renew(plane.db, build.id, plane.owner, LEASE_S):
                raise _Overtaken


async def _work(plane: Plane, build: TemplateBuild, log: "_Log") -> StepsDone | StepsFailed:
    order = await _order(plane, build)
    give_up_at = time.monotonic() + _WORKER_S
    while True:
        begun = False
        try:
            client = plane.workers.client(build.worker or plane.workers.place())
            async with contextlib.aclosing(BuildsClient(client).build(order)) as lines:
                async for line in lines:
                    begun = True
                    if isinstance(line, StepLog):
                        log.add(line)
                    elif isinstance(line, StepsDone | StepsFailed):
                        return line
        except Unavailable:
            if begun or time.monotonic() > give_up_at:
                raise
            await asyncio.sleep(_RETRY_S)
        else:
            raise Unavailable("The worker went away during the build. Build again; finished steps are kept.")


async def _order(plane: Plane, build: TemplateBuild) -> BuildSteps:
    """Return what the worker is told. Raises what keeps the source from being had."""
    wish = _Wish.model_validate(build.wish)
    return BuildSteps(
        scope=build.project,
        source=await _source(plane, build, wish),
        steps=wish.steps,
        start=wish.start,
        ready=wish.ready,
        vcpus=build.vcpus,
        memory_mib=build.memory_mib,
        min_free_mib=build.min_free_mib,
        force=wish.force,
        name=build.name,
        egress=EgressOrder(policy=await _policy(plane, build.project), generation=1),
    )


async def _policy(plane: Plane, project: ProjectId) -> dict[str, object]:
    """Return what may leave a build's machine: all that the project's ceiling lets out."""
    ceiling = await policies.ceiling(plane.db, project)
    return dict(PRESETS["open"]) | ({} if ceiling is None else {"ceiling": ceiling})


async def _source(plane: Plane, build: TemplateBuild, wish: _Wish) -> FromTemplate | FromImage:
    template = wish.template
    if wish.image is not None and wish.registry is None:
        template = plane.images.template_of(wish.image)
    if template is not None:
        found = await templates.usable_or_none(plane, build.project, template)
        if found is None:
            stands = f", for which the image {wish.image} stands," if wish.image else ""
            raise NotFound(f"There is no template {template[:80]!r}{stands} to build on.", code="template_not_found")
        return FromTemplate(digest=found.digest)
    assert wish.image is not None
    if wish.registry is not None:
        raise BuildFailed(
            f"Registries of type {wish.registry!r} are not supported: use one that takes a user name and a password."
        )
    login = None
    sealed = await rows.password(plane.db, build.id)
    if wish.username is not None and sealed is not None:
        password = plane.vault.open(sealed, builds.context(build.id))
        login = RegistryLogin(username=wish.username, password=pydantic.SecretStr(password))
    return FromImage(reference=wish.image, login=login, container=wish.container)


async def _record(plane: Plane, build: TemplateBuild, end: StepsDone | StepsFailed) -> None:
    async with plane.db.transaction() as tx:
        if isinstance(end, StepsFailed):
            await rows.fail(tx, build.id, plane.owner, end.detail, end.code, end.step)
            logger().info("build_failed", build=str(build.id), step=end.step, reason=end.detail)
            return
        template = dataclasses.replace(end.template.to_template(), name=build.name)
        ours = await rows.succeed(tx, build.id, plane.owner, template.digest)
        if ours:
            await template_rows.add(tx, build.project, template)
            await template_names.set_tags(tx, build.project, build.name, build.tags, template.digest, build.id)
    if not ours:
        await _discard(plane, build, template.digest)
        return
    await rows.forget_logs(plane.db, build.project)
    logger().info("template_built", name=build.name, build=str(build.id), digest=end.template.digest, cached=end.cached)


async def _discard(plane: Plane, build: TemplateBuild, digest: TemplateDigest) -> None:
    """Remove a template that was finished for a name which was deleted meanwhile."""
    with contextlib.suppress(Unavailable):
        for unwanted in await rows.orphans(plane.db, [digest]):
            client = plane.workers.client(build.worker or plane.workers.place())
            await client.delete_template(unwanted)


class _Log:
    """Lines on their way into the database, several at a time."""

    def __init__(self, plane: Plane, build: TemplateBuild) -> None:
        self._plane, self._build = plane, build
        self._waiting: list[BuildLine] = []
        self._count = 0

    def add(self, line: StepLog) -> None:
        text = line.text[:_MAX_TEXT].replace("\0", "")  # PostgreSQL's text has no NUL
        self._waiting.append(BuildLine(self._count, line.at, line.step, line.level, text))
        self._count += 1

    async def keep(self) -> StepsDone | StepsFailed:
        """Store what has come, for ever."""
        while True:
            await asyncio.sleep(_FLUSH_S)
            with contextlib.suppress(Unavailable):  # they wait here until it is back
                await self.flush()

    async def flush(self) -> None:
        """Store what has come. A line that was on its way when this was cut off is stored once all the same."""
        lines = list(self._waiting)
        if lines:
            await rows.log(self._plane.db, self._build.id, lines)
            del self._waiting[: len(lines)]
