"""Values read from the database a moment ago, so that the edge's question for each request costs no query.

An entry is dropped when the database tells that its row changed, and is never used for longer than MAX_AGE_S after the
query for it *began*: a revoked key or a dead sandbox is refused within that time even if no notice comes through. Where
somebody reads those in use again before that (`in_use`, `keep`), no request waits for it.
"""

import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

MAX_AGE_S = 0.8
_MOST = 20_000
K = TypeVar("K")
V = TypeVar("V")


@dataclasses.dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    began: float
    used: float


class Recent(Generic[K, V]):
    """A bounded map from key to what `read` returned for it."""

    def __init__(self, read: Callable[[K], Awaitable[V]]) -> None:
        self._read = read
        self._entries: dict[K, _Entry[V]] = {}

    async def get(self, key: K) -> V:
        """Return the value, read now where it is not known; what `read` raises is not kept."""
        now = time.monotonic()
        entry = self._entries.get(key)
        if entry is not None and now - entry.began < MAX_AGE_S:
            entry.used = now
            return entry.value
        value = await self._read(key)
        if len(self._entries) >= _MOST:
            self._entries.clear()
        self._entries[key] = _Entry(value, now, now)
        return value

    def in_use(self, within_s: float) -> list[K]:
        """Return the keys that are known and were asked for in the last `within_s`."""
        since = time.monotonic() - within_s
        return [key for key, entry in self._entries.items() if entry.used > since]

    def keep(self, key: K, value: V, began: float) -> None:
        """Take a value that was read again, by a query that began then; not where it was dropped meanwhile."""
        if (entry := self._entries.get(key)) is not None:
            entry.value, entry.began = value, began

    def drop(self, key: K | None) -> None:
        """Forget one entry, or all with None."""
        if key is None:
            self._entries.clear()
        else:
            self._entries.pop(key, None)
