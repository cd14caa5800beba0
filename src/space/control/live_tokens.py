"""The tokens of all sandboxes that live, to find out whose a signature is. Read again when they are a moment old."""

import time
from collections.abc import Callable, Iterable

from space.model.ids import SandboxId
from space.store import sandboxes
from space.store.db import Database

MAX_AGE_S = 0.8

Choice = Callable[[Iterable[tuple[SandboxId, str]]], SandboxId | None]


class LiveTokens:
    """The list, for one process."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._read_at = float("-inf")
        self._tokens: list[tuple[SandboxId, str]] = []

    async def find(self, which: Choice) -> SandboxId | None:
        """Return what `which` picks out of the list; None where it picks none, of one that was read since now either.

        So a sandbox is known here as soon as its creator is told of it.
        """
        now = time.monotonic()
        if now - self._read_at > MAX_AGE_S:
            await self._read()
        found = which(self._tokens)
        if found is None and self._read_at < now:
            await self._read()
            found = which(self._tokens)
        return found

    async def _read(self) -> None:
        began = time.monotonic()
        self._tokens = await sandboxes.live_tokens(self._db)
        self._read_at = began
