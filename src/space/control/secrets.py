"""Use cases on secrets. A value comes in once, and goes out only to gateways beside sandboxes whose policy binds it."""

from collections.abc import Mapping, Set

from space.control import egress
from space.control.plane import Plane
from space.control.secret_values import context, resealed_own
from space.control.vault import CannotOpen
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.ids import ProjectId
from space.model.secret import MAX_SECRETS, Secret, check_metadata, check_name, check_value
from space.store import policies, secrets
from space.telemetry import logger

_AT_ONCE = 100
_FIRST, _NEXT = "first", "next"
"""Which value of a secret a write may be."""


async def put(plane: Plane, project: ProjectId, name: str, value: str) -> Secret:
    """Give a secret its first or next value; returns when the sandboxes that use it go by it, where they answer.

    Raises InvalidArgument for a name or value that cannot be, or where there are too many.
    """
    return await _write(plane, project, name, value, None, frozenset({_FIRST, _NEXT}))


async def create(plane: Plane, project: ProjectId, name: str, value: str, metadata: Mapping[str, str]) -> Secret:
    """Give a new secret its first value; raises as `put`, and Conflict where there is one of this name."""
    return await _write(plane, project, name, value, metadata, frozenset({_FIRST}))


async def update(
    plane: Plane, project: ProjectId, name_or_id: str, value: str, metadata: Mapping[str, str] | None
) -> Secret:
    """Give a secret its next value; `metadata` None leaves that as it is. Raises as `put`, and NotFound."""
    name = (await find(plane, project, name_or_id)).name
    return await _write(plane, project, name, value, metadata, frozenset({_NEXT}))


async def _write(
    plane: Plane, project: ProjectId, name: str, value: str, metadata: Mapping[str, str] | None, may_be: Set[str]
) -> Secret:
    check_name(name)
    check_value(value)
    check_metadata(metadata or {})
    async with plane.db.transaction() as tx:
        count = await secrets.lock(tx, project)
        place = await secrets.next_place(tx, project, name)
        if place.version == 1 and _FIRST not in may_be:
            raise _missing(name)
        if place.version > 1 and _NEXT not in may_be:
            raise Conflict(f"There is a secret {name!r} already.", code="name_taken")
        if place.version == 1 and count >= MAX_SECRETS:
            raise InvalidArgument(f"A project has at most {MAX_SECRETS} secrets; remove one that is not needed.")
        made = await secrets.put(tx, project, name, place, plane.vault.seal(value, context(place)), metadata)
        touched = await policies.raise_secrets(tx, project, name)
    logger().info("secret_set", project=project, secret=name, version=made.version, sandboxes=len(touched))
    await egress.push_all(plane, touched)
    return made


def _missing(name: str) -> NotFound:
    return NotFound(f"There is no secret {name[:64]!r}.")


async def find(plane: Plane, project: ProjectId, name_or_id: str) -> Secret:
    """Return the project's secret with this name or id, without its value; raises NotFound."""
    found = await secrets.find(plane.db, project, name_or_id)
    if found is None:
        raise _missing(name_or_id)
    return found


async def listed(plane: Plane, project: ProjectId) -> list[Secret]:
    """Return a project's secrets, without their values."""
    return await secrets.listed(plane.db, project)


async def delete(plane: Plane, project: ProjectId, name: str) -> None:
    """Remove a secret; requests that need it are refused from then on. Raises NotFound."""
    async with plane.db.transaction() as tx:
        await secrets.lock(tx, project)
        if not await secrets.delete(tx, project, name):
            raise _missing(name)
        touched = await policies.raise_secrets(tx, project, name)
    logger().info("secret_deleted", project=project, secret=name, sandboxes=len(touched))
    await egress.push_all(plane, touched)


async def reseal(plane: Plane) -> int:
    """Seal anew, with the newest master key, what another one sealed; returns how many values that were.

    What does not open is left as it is: its key may be put back.
    """
    count, after = 0, ""
    while found := await secrets.under_other_keys(plane.db, plane.vault.key_id, after, _AT_ONCE):
        after = found[-1].place.id
        for one in found:
            try:
                value = plane.vault.open(one.sealed, context(one.place))
            except CannotOpen as error:
                logger().error("secret_unreadable", secret=one.name, error=str(error))
                continue
            await secrets.reseal(plane.db, one.place, plane.vault.seal(value, context(one.place)))
            count += 1
    return count + await _reseal_own(plane)


async def _reseal_own(plane: Plane) -> int:
    """Seal sandboxes' own passwords anew."""
    count, after = 0, ""
    while found := await policies.under_other_keys(plane.db, plane.vault.key_id, after, _AT_ONCE):
        after = found[-1].sandbox
        for one in found:
            sealed = resealed_own(plane.vault, one)
            if sealed is not None and one.password is not None:
                await policies.reseal(plane.db, one.sandbox, one.password, sealed)
                count += 1
    return count
