"""Lists by pages: `limit`, `nextToken`, and `x-next-token` in the answer where there is more."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from space.model.errors import InvalidArgument

MAX_PAGE = 100
T = TypeVar("T")


def check_limit(limit: int) -> int:
    """Return how many a page has; raises InvalidArgument."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidArgument(f"limit must be 1 to {MAX_PAGE}.")
    return limit


def page_of(found: Sequence[T], key: Callable[[T], str], limit: int, token: str) -> tuple[Sequence[T], dict[str, str]]:
    """Return the part of a whole list after the item whose key is `token`, and the headers that lead on.

    Raises InvalidArgument for a bad limit, and where no item has this key.
    """
    keys = [key(one) for one in found]
    if token and token not in keys:
        raise InvalidArgument("Invalid next token")
    begin = keys.index(token) + 1 if token else 0
    end = begin + check_limit(limit)
    return found[begin:end], ({"x-next-token": keys[end - 1]} if end < len(found) else {})
