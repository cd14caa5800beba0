"""Opens the secrets of one project: the only place where values are in the clear on the control side."""

from collections.abc import Collection

from pydantic import SecretStr

from space.control.vault import CannotOpen, Vault
from space.model.egress import SandboxEgress
from space.model.ids import ProjectId
from space.model.policy_upstream import OWN_PASSWORD
from space.model.secret import Sealed
from space.store import secrets
from space.store.db import Queries
from space.store.secrets import Place
from space.telemetry import logger
from space.wire.gateway import SecretValue


def context(place: Place) -> str:
    """Return what a value is sealed for."""
    return f"secret {place.id} {place.version}"


def _own_context(project: ProjectId) -> str:
    """Return what a sandbox's own password is sealed for. Its forks have it too, so it is not for one sandbox."""
    return f"proxy password {project}"


def seal_own(vault: Vault, project: ProjectId, password: SecretStr | None) -> Sealed | None:
    """Seal the password that came with a sandbox's policy."""
    return None if password is None else vault.seal(password.get_secret_value(), _own_context(project))


def resealed_own(vault: Vault, found: SandboxEgress) -> Sealed | None:
    """Return a sandbox's own password sealed anew; None where it has none, or it does not open."""
    own = _own(vault, found)
    return None if own is None else seal_own(vault, found.project, own.value)


def _own(vault: Vault, found: SandboxEgress) -> SecretValue | None:
    if found.password is None:
        return None
    try:
        value = SecretStr(vault.open(found.password, _own_context(found.project)))
    except CannotOpen as error:
        logger().error("secret_unreadable", sandbox=found.sandbox, secret=OWN_PASSWORD, error=str(error))
        return None
    version = found.generations.secrets
    return SecretValue(id=found.sandbox, version=version, given_version=version, value=value)


async def values_for(db: Queries, vault: Vault, found: SandboxEgress) -> dict[str, SecretValue]:
    """Return what a sandbox's policy names, of its project's secrets and its own."""
    opened = await values(db, vault, found.project, [name for name in found.secrets if name != OWN_PASSWORD])
    own = _own(vault, found) if OWN_PASSWORD in found.secrets else None
    return opened if own is None else opened | {OWN_PASSWORD: own}


async def values(db: Queries, vault: Vault, project: ProjectId, names: Collection[str]) -> dict[str, SecretValue]:
    """Return those of these secrets that the project has and that open; without the others requests are refused."""
    opened: dict[str, SecretValue] = {}
    for found in await secrets.sealed(db, project, names) if names else ():
        try:
            value = SecretStr(vault.open(found.sealed, context(found.place)))
        except CannotOpen as error:
            logger().error("secret_unreadable", project=project, secret=found.name, error=str(error))
            continue
        opened[found.name] = SecretValue(
            id=found.place.id, version=found.place.version, given_version=found.given_version, value=value
        )
    return opened
