"""Use cases on the names of templates: find, list, tag, publish, delete."""

from collections.abc import Sequence

from space.control import templates
from space.control.plane import Plane
from space.model.errors import Conflict, NotFound
from space.model.ids import ProjectId, is_digest
from space.model.template import TemplateKind
from space.model.template_build import DEFAULT_TAG, NamedTemplate, Tag, read_reference, split_reference
from space.store import template_names as rows
from space.store import templates as template_rows
from space.telemetry import logger


async def find(plane: Plane, project: ProjectId, name_or_id: str) -> NamedTemplate:
    """Return the project's template of this name (its tag does not matter) or id; raises NotFound."""
    name = read_reference(name_or_id)[0]
    found = await rows.find(plane.db, project, name)
    if found is None:
        raise NotFound(f"There is no template {name!r}.", code="template_not_found")
    return found


async def find_usable(plane: Plane, project: ProjectId, reference: str) -> NamedTemplate:
    """Return the template that a project may use: as templates.find_usable; raises NotFound."""
    space, name, _ = split_reference(reference)
    public = await rows.find_public(plane.db, space, name) if space else None
    own = public or await rows.find(plane.db, project, name)
    return own or await rows.find_public(plane.db, "", name) or await find(plane, project, name)


async def listed(
    plane: Plane, project: ProjectId, after: str | None, limit: int
) -> tuple[list[NamedTemplate], str | None]:
    """Return the project's templates, newest first, after the one with this id, and what the next page is after."""
    found = await rows.listed(plane.db, project, after, limit + 1)
    page = found[:limit]
    return page, page[-1].id if len(found) > limit else None


async def tags(plane: Plane, project: ProjectId, name_or_id: str) -> list[Tag]:
    """Return what the tags of a template stand for, the last set first; raises NotFound."""
    return await rows.tags(plane.db, project, (await find(plane, project, name_or_id)).name)


async def assign(plane: Plane, project: ProjectId, target: str, given: Sequence[str]) -> Tag:
    """Let tags stand for what `target` (`name[:tag]`) stands for, and return that.

    Each is a tag, or `name:tag` of the same name. Raises InvalidArgument, NotFound.
    """
    named = await find(plane, project, target)
    wanted = read_reference(target)[1] or DEFAULT_TAG
    tag = next((tag for tag in await rows.tags(plane.db, project, named.name) if tag.tag == wanted), None)
    if tag is None:
        raise NotFound(f"Template {named.name} has no tag {wanted!r}.", code="template_not_found")
    new = [_tag_of(text) for text in given]
    async with plane.db.transaction() as tx:
        await rows.set_tags(tx, project, named.name, new, tag.digest, tag.build)
    logger().info("template_tagged", name=named.name, tags=new, digest=tag.digest)
    return tag


async def unassign(plane: Plane, project: ProjectId, name: str, given: Sequence[str]) -> None:
    """Take tags away, all of them or, where one is not there, none; what they stood for stays. Raises NotFound."""
    named = await find(plane, project, name)
    async with plane.db.transaction() as tx:
        for tag in map(_tag_of, given):
            if not await rows.remove_tag(tx, project, named.name, tag):
                raise NotFound(f"Template {named.name} has no tag {tag!r}.", code="template_not_found")


def _tag_of(text: str) -> str:
    """Return the tag of `tag` or `name:tag`; raises InvalidArgument."""
    return read_reference(text if ":" in text else f"x:{text}")[1] or DEFAULT_TAG


async def publish(plane: Plane, project: ProjectId, name_or_id: str, *, public: bool) -> NamedTemplate:
    """Let other projects use a template, or no longer; raises NotFound."""
    named = await find(plane, project, name_or_id)
    await rows.publish(plane.db, project, named.name, public=public)
    return await find(plane, project, named.name)


async def delete(plane: Plane, project: ProjectId, name_or_id: str) -> None:
    """Delete a name with all that its builds have made; a build that is running ends.

    What another name stands for stays. Raises NotFound, and Conflict while a live sandbox started from any of it.
    """
    named = await find(plane, project, name_or_id)
    made = await rows.digests(plane.db, project, named.name)
    own = [digest for digest in made if not await rows.named_elsewhere(plane.db, project, named.name, digest)]
    for digest in own:
        if await template_rows.in_use(plane.db, project, digest):
            raise Conflict(f"Template {named.name} is in use by a sandbox; delete that first.", code="template_in_use")
    async with plane.db.transaction() as tx:
        await rows.delete(tx, project, named.name)
    for digest in own:
        await templates.delete(plane, project, digest)
    logger().info("template_name_deleted", name=named.name, templates=len(own))


async def delete_meant(plane: Plane, project: ProjectId, reference: str) -> None:
    """Delete what a digest, a name or `name:tag` stands for; what another name or tag stands for too stays with that.

    Raises as templates.delete.
    """
    template = await templates.find(plane, project, reference)
    if is_digest(reference) or template.kind is TemplateKind.SNAPSHOT:
        await templates.delete(plane, project, template.digest)
        return
    name, tag = read_reference(reference)
    if tag in (None, DEFAULT_TAG):
        await delete(plane, project, name)
        return
    others = [one for one in await tags(plane, project, name) if one.digest == template.digest and one.tag != tag]
    if others or await rows.named_elsewhere(plane.db, project, name, template.digest):
        await unassign(plane, project, name, [f"{name}:{tag}"])
    else:
        await templates.delete(plane, project, template.digest)
