"""Brings what was suspended to where it survives a loss of power, one at a time, in the background."""

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import Callable, Sequence

from space.disk import frozen as storage
from space.disk.frozen import Frozen
from space.disk.settlement import settle
from space.model.errors import SpaceError
from space.telemetry import logger

log = logger()
_FIRST_RETRY_S, _LAST_RETRY_S = 5.0, 300.0
"""How long after a failure (a full disk) it is tried again; twice as long each time, up to the last."""


@dataclasses.dataclass(slots=True)
class _Work:
    bases: Sequence[Frozen]
    done: Callable[[], None]
    retry_s: float


class Settler:
    """A queue of frozen VMs and the loop that settles them. `first_retry_s` is for tests."""

    def __init__(self, first_retry_s: float = _FIRST_RETRY_S) -> None:
        self._first_retry_s = first_retry_s
        self._queue: collections.OrderedDict[Frozen, _Work] = collections.OrderedDict()
        self._later: dict[Frozen, asyncio.TimerHandle] = {}
        self._came = asyncio.Event()
        self._busy: Frozen | None = None
        self._dropped = False
        self.failures = 0
        """How many attempts have failed."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def empty(self) -> bool:
        """Whether nothing waits, for its turn or to be tried again."""
        return not self._queue and not self._later

    def add(self, frozen: Frozen, bases: Sequence[Frozen], done: Callable[[], None]) -> None:
        """Settle it when its turn comes, and call `done` then; what fails is tried again until it is dropped.

        `bases` are what it may share blocks with.
        """
        self._put(frozen, _Work(bases, done, self._first_retry_s))

    async def finish(self, longest_s: float) -> None:
        """Wait until all that was added is settled, apart from what has failed; not longer than so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while self._queue or self._busy is not None:
                    await self._idle.wait()
                    await asyncio.sleep(0)  # the loop takes up the next

    async def drop(self, frozen: Frozen) -> None:
        """Remove it from storage, settled or not; waits where it is just being worked on."""
        self._queue.pop(frozen, None)
        if (timer := self._later.pop(frozen, None)) is not None:
            timer.cancel()
        if self._busy == frozen:
            self._dropped = True
            await self._idle.wait()
        await asyncio.to_thread(storage.discard, frozen)

    async def run(self) -> None:
        """Work for ever."""
        while True:
            await self._came.wait()
            if not self._queue:
                self._came.clear()
                continue
            frozen, work = self._queue.popitem(last=False)
            self._busy, self._dropped = frozen, False
            self._idle.clear()
            try:
                await settle(frozen, work.bases)
            except (SpaceError, OSError) as error:
                log.warning("settling_failed", snapshot=frozen.name, error=str(error), retry_s=work.retry_s)
                self.failures += 1
                self._retry(frozen, work)
            else:
                work.done()
            finally:
                self._busy = None
                self._idle.set()

    def _retry(self, frozen: Frozen, work: _Work) -> None:
        if self._dropped or storage.is_gone(frozen):
            return
        again = dataclasses.replace(work, retry_s=min(2 * work.retry_s, _LAST_RETRY_S))
        loop = asyncio.get_running_loop()
        self._later[frozen] = loop.call_later(work.retry_s, self._put, frozen, again)

    def _put(self, frozen: Frozen, work: _Work) -> None:
        self._later.pop(frozen, None)
        self._queue[frozen] = work
        self._came.set()
