"""When each sandbox was last used, as far as requests tell: kept here, written to the rows once a second, all at once.

A process that dies takes at most that second with it. What happens inside a sandbox is asked of its worker, just before
it would be suspended.
"""

import datetime

from space.control.clock import Clock
from space.model.ids import SandboxId
from space.store import deadlines
from space.store.db import Database

FLUSH_S = 1.0


class Activity:
    """One per process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[SandboxId, datetime.datetime] = {}

    def touch(self, sandbox: SandboxId) -> None:
        """Note that a sandbox is used now."""
        self._seen[sandbox] = self._clock.now()

    async def flush(self, db: Database) -> None:
        """Write what was noted since the last time; raises Unavailable, and then keeps it for the next."""
        if not self._seen:
            return
        told, self._seen = self._seen, {}
        try:
            await deadlines.touch(db, told)
        except BaseException:
            self._seen = told | self._seen
            raise
