"""Opens the secrets of one project: the only place where values are in the clear on the control side."""

from collections.abc import Collection

from pydantic import SecretStr

from space.control.vault import CannotOpen, Vault
from space.model.ids import ProjectId
from space.store import secrets
from space.store.db import Queries
from space.store.secrets import Place
from space.telemetry import logger
from space.wire.gateway import SecretValue


def context(place: Place) -> str:
    """Return what a value is sealed for."""
    return f"secret {place.id} {place.version}"


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
