"""Use cases on templates: build, find, list, delete."""

import contextlib
from collections.abc import AsyncGenerator

from space.control.plane import Plane
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.ids import ProjectId, is_digest, is_template_name
from space.model.template import Template, how_to_get
from space.model.template_build import DEFAULT_TAG, read_reference, split_reference
from space.store import templates
from space.telemetry import logger
from space.wire.templates import BuildDone, BuildFailedLine, BuildLog, BuildTemplate


async def build(
    plane: Plane, project: ProjectId, wish: BuildTemplate
) -> AsyncGenerator[BuildLog | BuildDone | BuildFailedLine]:
    """Build a template on a worker and yield its log; at `done` the project's name points to it.

    Raises InvalidArgument for a bad name, Unavailable where no worker answers or it went away during the build.
    """
    if not is_template_name(wish.name):
        raise InvalidArgument(
            "name must be 1 to 63 characters of a-z, 0-9, '.', '_', '-', and begin and end with a letter or digit."
        )
    client = plane.workers.client(plane.workers.place())
    async with contextlib.aclosing(client.build(wish)) as lines:
        async for line in lines:
            if isinstance(line, BuildDone):
                template = line.template.to_template()
                async with plane.db.transaction() as tx:
                    await templates.record(tx, project, template)
                logger().info("template_built", name=wish.name, digest=template.digest, cached=line.cached)
            yield line


async def find_or_none(plane: Plane, project: ProjectId, name_or_digest: str) -> Template | None:
    """Return the project's template with this digest, `name` or `name:tag`, if there is one."""
    if is_digest(name_or_digest):
        return await templates.find(plane.db, project, name_or_digest)
    try:
        name, tag = read_reference(name_or_digest)
    except InvalidArgument:
        return None
    return await templates.find(plane.db, project, name, tag or DEFAULT_TAG)


async def public_or_none(plane: Plane, reference: str) -> Template | None:
    """Return the public template, of whichever project, that `project/name[:tag]` means, or `id[:tag]` of its name.

    `project` is a project's id or name.
    """
    try:
        space, name, tag = split_reference(reference)
    except InvalidArgument:
        return None
    return await templates.find_public(plane.db, space, name, tag or DEFAULT_TAG)


async def usable_or_none(plane: Plane, project: ProjectId, reference: str) -> Template | None:
    """Return the template that a project may use, if there is one: a public one, as above, or its own.

    What stands before a name and is no project with such a public template means nothing.
    """
    public = await public_or_none(plane, reference) if "/" in reference else None
    own = public or await find_or_none(plane, project, reference)
    return own or await public_or_none(plane, reference.rpartition("/")[2])


async def find_usable(plane: Plane, project: ProjectId, reference: str) -> Template:
    """Return the template that a project may use; raises NotFound."""
    return _found(await usable_or_none(plane, project, reference), reference)


async def find(plane: Plane, project: ProjectId, name_or_digest: str) -> Template:
    """Return the project's template with this name or digest; raises NotFound."""
    return _found(await find_or_none(plane, project, name_or_digest), name_or_digest)


def _found(found: Template | None, reference: str) -> Template:
    if found is None:
        raise NotFound(f"There is no template {reference[:80]!r}. {how_to_get(reference)}", code="template_not_found")
    return found


async def listed(plane: Plane, project: ProjectId) -> list[Template]:
    """Return the project's templates, newest first."""
    return await templates.listed(plane.db, project)


async def delete(plane: Plane, project: ProjectId, name_or_digest: str) -> None:
    """Delete a template and its files; raises NotFound, and Conflict while a live sandbox started from it.

    The files go first: where a worker does not answer, the template is still there and the delete can be repeated.
    """
    template = await find(plane, project, name_or_digest)
    if await templates.in_use(plane.db, project, template.digest):
        raise Conflict(f"Template {template.name} is in use by a sandbox; delete that first.", code="template_in_use")
    if not await templates.shared(plane.db, project, template.digest):
        for link in plane.workers.links:
            await link.client.delete_template(template.digest)
    await templates.remove(plane.db, project, template.digest)
    logger().info("template_deleted", name=template.name, digest=template.digest)
