"""How E2B's clients name templates and snapshots: `[namespace/]name[:tag]` or an id, and how we do.

A namespace is a project; one that is none, or has no such public template, means the caller's own. A snapshot that was
given no name is called after the operation that took it, and its id is the operation's.
"""

from space.control import templates
from space.control.plane import Plane
from space.model.errors import NotFound
from space.model.ids import ProjectId, is_id
from space.model.template import Template, how_to_get

DEFAULT_TAG = "default"
_UNNAMED = "snapshot-"


async def find(plane: Plane, project: ProjectId, reference: str) -> Template:
    """Return the template or snapshot that a client means; raises NotFound."""
    name = plain(reference)
    found = await templates.find_or_none(plane, project, name)
    if found is None and is_id(name):
        found = await templates.find_or_none(plane, project, _UNNAMED + name)
    if found is None:
        raise NotFound(f"template {reference[:80]!r} not found. {how_to_get(name)}", code="template_not_found")
    return found


async def find_usable(plane: Plane, project: ProjectId, reference: str) -> tuple[Template, str]:
    """Return what a client means to start from, another project's public template too, and what it is called here.

    Raises NotFound.
    """
    public = await templates.public_or_none(plane, reference) if "/" in reference else None
    if public is not None:
        return public, reference
    try:
        found = await find(plane, project, reference)
    except NotFound:
        public = await templates.public_or_none(plane, plain(reference))
        if public is None:
            raise
        return public, plain(reference)
    return found, called(reference, found)


def plain(reference: str) -> str:
    """Return a reference without its namespace, and without its tag where that is the default one."""
    return reference.rpartition("/")[2].removesuffix(":" + DEFAULT_TAG)


def called(reference: str, template: Template) -> str:
    """Return the name by which a sandbox of a template remembers what its client asked for."""
    name = plain(reference)
    return name if ":" in name else template.name


def shown(name: str) -> str:
    """Return the name of a template as clients see it."""
    ident = name.removeprefix(_UNNAMED)
    return ident if name.startswith(_UNNAMED) and is_id(ident) else name
