"""Steady time: what deadlines are kept in, so that setting a clock moves none of them.

It runs like the database's clock, but takes no part in its steps. Nobody can set a host's clock since boot; so each
process compares the two once a second, and when the database's has jumped against it by more than STEP_S, the row
`clock` gets a shift that undoes the jump, for all processes. Smaller differences are drift, and followed.

What must not fail meanwhile:
- A process that asks what time it is gets the steady time of its last comparison plus the seconds since, never the
  database's `now()`: in the moment between a step and its discovery nothing is written or fired by a wrong clock.
- Nobody need be running during the step: the anchor of this boot in the database is from before it.
- After a boot of the host its clock since boot begins again. Steady time then goes on from the wall clock, but never
  back behind what any process has seen. A wall clock that was set while the host was off cannot be told from time that
  passed.
"""

import datetime
import time
from collections.abc import Callable

from space.host.process import boot_id
from space.store import clock
from space.store.clock import Anchor
from space.store.db import Database, Queries
from space.telemetry import logger

STEP_S = 1.0
_SLOW_S = 0.5
"""A comparison that took longer says nothing about the clocks: this process may have been stopped in the middle."""


def since_boot_s() -> float:
    """Return the seconds since this host booted, those asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """One per process. Before the first comparison it runs from the wall clock.

    `boot` names this boot of the host, and `since_boot` tells its seconds.
    """

    def __init__(self, boot: str | None = None, since_boot: Callable[[], float] = since_boot_s) -> None:
        self._boot_id = boot or boot_id()
        self._since_boot = since_boot
        self._shift_s = 0.0
        self._anchor = Anchor(since_boot(), time.time())

    @property
    def now_s(self) -> float:
        """Steady time in seconds since 1970."""
        return self._anchor.steady_s + self._since_boot() - self._anchor.since_boot_s

    def now(self) -> datetime.datetime:
        """Return the steady time, as the rows have it."""
        return datetime.datetime.fromtimestamp(self.now_s, datetime.UTC)

    def shown(self, at: datetime.datetime | None) -> datetime.datetime | None:
        """Return the time that the wall clock shows, or will show, at a steady time."""
        return None if at is None else at - datetime.timedelta(seconds=self._shift_s)

    async def compare(self, db: Database) -> None:
        """Compare the database's clock with this host's, and undo a step of the former. Raises Unavailable."""
        async with db.transaction() as tx:
            shift_s = await clock.lock_shift(tx)
            began_s = self._since_boot()
            steady_s = await clock.wall_s(tx) + shift_s
            read_s = self._since_boot()
            if read_s - began_s > _SLOW_S:
                return
            stepped_s = await self._stepped_s(tx, steady_s, read_s)
            if abs(stepped_s) > STEP_S:
                logger().warning("clock_stepped", by_s=round(stepped_s, 3))
                shift_s -= stepped_s
                steady_s -= stepped_s
            anchor = Anchor(read_s, steady_s)
            await clock.write(tx, self._boot_id, anchor, shift_s)
        self._anchor, self._shift_s = anchor, shift_s

    async def _stepped_s(self, tx: Queries, steady_s: float, read_s: float) -> float:
        """Return by how much the database's clock, read as `steady_s`, has been set since the last comparison."""
        known = await clock.anchor(tx, self._boot_id)
        if known is not None:
            return steady_s - (known.steady_s + read_s - known.since_boot_s)
        seen_s = await clock.latest(tx)
        return 0.0 if seen_s is None else min(0.0, steady_s - seen_s)
