"""A secret, as far as it is known again; and sealed data, which only the master key opens."""

import dataclasses
import datetime

from space.model.errors import InvalidArgument
from space.model.policy_bindings import is_secret_name

MAX_SECRETS = 1000
"""Of a project."""

MAX_VALUE_BYTES = 8192


@dataclasses.dataclass(frozen=True, slots=True)
class Secret:
    """What is told about a secret: never its value. `version` counts the values it has had."""

    name: str
    version: int
    created_at: datetime.datetime
    updated_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Sealed:
    """Encrypted data and the master key that it was encrypted with."""

    key_id: str
    data: bytes = dataclasses.field(repr=False)


def check_name(name: str) -> None:
    """Raise InvalidArgument for what cannot name a secret."""
    if not is_secret_name(name):
        raise InvalidArgument("A secret's name is a letter or '_', then letters, digits and '_', at most 64 in all.")


def check_value(value: str) -> None:
    """Raise InvalidArgument, without showing it, for a value that cannot be carried in a header or a parameter."""
    if not 0 < len(value.encode(errors="replace")) <= MAX_VALUE_BYTES or not value.isprintable():
        raise InvalidArgument(
            f"A secret's value is 1 to {MAX_VALUE_BYTES} bytes of UTF-8 without control characters or line ends."
        )
