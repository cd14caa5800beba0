"""Brings what was suspended to where it survives a loss of power, one at a time, in the background."""

import asyncio
import collections
from collections.abc import Callable

from space.disk import frozen as storage
from space.disk.frozen import Frozen
from space.model.errors import SnapshotDamaged
from space.telemetry import logger

log = logger()


class Settler:
    """A queue of frozen VMs and the loop that settles them."""

    def __init__(self) -> None:
        self._queue: collections.OrderedDict[Frozen, Callable[[], None]] = collections.OrderedDict()
        self._came = asyncio.Event()
        self._busy: Frozen | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, frozen: Frozen, done: Callable[[], None]) -> None:
        """Settle it when its turn comes, and call `done` then. It is not called where that fails."""
        self._queue[frozen] = done
        self._came.set()

    async def drop(self, frozen: Frozen) -> None:
        """Remove it from storage, settled or not; waits where it is just being worked on."""
        self._queue.pop(frozen, None)
        if self._busy == frozen:
            await self._idle.wait()
        await asyncio.to_thread(storage.discard, frozen)

    async def run(self) -> None:
        """Work for ever."""
        while True:
            await self._came.wait()
            if not self._queue:
                self._came.clear()
                continue
            frozen, done = self._queue.popitem(last=False)
            self._busy = frozen
            self._idle.clear()
            try:
                await storage.settle(frozen)
            except (SnapshotDamaged, OSError):
                log.exception("settling_failed", snapshot=frozen.name)
            else:
                done()
            finally:
                self._busy = None
                self._idle.set()
