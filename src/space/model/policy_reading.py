"""Strict reading of JSON values: each function returns what it was given, or raises InvalidPolicy."""

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from space.model.errors import InvalidPolicy, SpaceError

T = TypeVar("T")
MAX_TEXT = 2048


def known(document: Mapping[str, object], keys: Collection[str], where: str) -> None:
    """Refuse a key that is not one of `keys`."""
    for key in document:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" It may have: {', '.join(keys)}."
            raise InvalidPolicy(f"{where}: unknown key {shown(key)}.{hint}")


def field(document: Mapping[str, object], key: str, where: str, read: Callable[[object], T]) -> T | None:
    """Read one field of a document, None where it has none; an error begins with where it stands."""
    if key not in document:
        return None
    with_place = f"{where}.{key}"
    try:
        return read(document[key])
    except SpaceError as error:
        raise InvalidPolicy(f"{with_place}: {error}") from error


def mapping(value: object, where: str) -> Mapping[str, object]:
    """Return a JSON object."""
    if not isinstance(value, Mapping):
        raise InvalidPolicy(f"{where}: must be an object; got {shown(value)}.")
    return value


def sequence(value: object, where: str) -> Sequence[object]:
    """Return a JSON array."""
    if not isinstance(value, list | tuple):
        raise InvalidPolicy(f"{where}: must be a list; got {shown(value)}.")
    return value


def some(values: Sequence[T]) -> Sequence[T]:
    """Refuse an empty list: it reads like "none", and what is meant may be "any"."""
    if not values:
        raise InvalidPolicy("an empty list matches nothing; leave it out to mean any.")
    return values


def text(value: object) -> str:
    """Return a text of at most MAX_TEXT characters."""
    if not isinstance(value, str) or not value:
        raise InvalidPolicy(f"must be a text; got {shown(value)}.")
    if not value.isprintable():
        raise InvalidPolicy(f"{shown(value)} has control characters.")
    if len(value) > MAX_TEXT:
        raise InvalidPolicy(f"{shown(value)} has more than {MAX_TEXT} characters.")
    return value


def flag(value: object, where: str) -> bool:
    """Return true or false; nothing that only looks like it."""
    if not isinstance(value, bool):
        raise InvalidPolicy(f"{where}: must be true or false; got {shown(value)}.")
    return value


def choice(value: object, choices: Collection[str], where: str) -> str:
    """Return one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidPolicy(f"{where}: {shown(value)} is not one of {', '.join(choices)}.")
    return value


def whole_number(value: object, where: str, least: int, most: int) -> int:
    """Return an integer within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidPolicy(f"{where}: must be a whole number, {least} to {most}; got {shown(value)}.")
    return value


def shown(value: object) -> str:
    """Return a value for an error, short and in ASCII."""
    plain = ascii(value)
    return plain if len(plain) <= 60 else plain[:60] + "..."
