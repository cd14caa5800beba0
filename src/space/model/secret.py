"""A secret, as far as it is known again; and sealed data, which only the master key opens."""

import dataclasses
import datetime
import re
from collections.abc import Mapping

from space.model.errors import InvalidArgument
from space.model.policy_bindings import is_secret_name
from space.model.policy_upstream import OWN_PASSWORD

MAX_SECRETS = 1000
"""Of a project."""

MAX_METADATA_BYTES = 16 * 1024
"""Names and values of a secret's metadata together."""

MAX_VALUE = 8192
"""Characters of a value."""

VALUE = r"^[^\x00-\x1f\x7f-\x9f]+$"
"""Pattern of a value: no control characters, so no line ends, since it is sent in headers."""


@dataclasses.dataclass(frozen=True, slots=True)
class Secret:
    """What is told about a secret: never its value. `version` counts the values it has had."""

    id: str
    name: str
    version: int
    metadata: Mapping[str, str]
    created_at: datetime.datetime
    updated_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Sealed:
    """Encrypted data and the master key that it was encrypted with."""

    key_id: str
    data: bytes = dataclasses.field(repr=False)


def check_name(name: str) -> None:
    """Raise InvalidArgument for what cannot name a secret of a project."""
    if name == OWN_PASSWORD:
        raise InvalidArgument(f"{name} is the password that came with a sandbox's own policy; take another name.")
    if not is_secret_name(name):
        raise InvalidArgument(
            "A secret's name is a letter or '_', then letters, digits, '_', '-' and '.', at most 64 in all."
        )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise InvalidArgument for metadata that cannot be kept."""
    if sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items()) > MAX_METADATA_BYTES:
        raise InvalidArgument(f"metadata is over {MAX_METADATA_BYTES} bytes in all.")
    if any("\0" in name + value for name, value in metadata.items()):
        raise InvalidArgument("metadata: no NUL in a name or value.")


def check_value(value: str) -> None:
    """Raise InvalidArgument, without showing it, for a value that cannot be carried in a header or a parameter."""
    if len(value) > MAX_VALUE or re.fullmatch(VALUE, value) is None:
        raise InvalidArgument(f"A secret's value is 1 to {MAX_VALUE} characters, no control characters, no line ends.")
