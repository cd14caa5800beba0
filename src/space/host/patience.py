"""Deadlines for what another process is to do, which leave out the time that it stood in line for a processor.

On a host that is overrun a sound process gets little done in a second, and a deadline by the clock alone takes it for a
dead one. The kernel counts for each thread how long it was ready to run and did not (Linux: sched-stats.rst, the second
field of /proc/<pid>/schedstat). A process that hangs, be it asleep or spinning, is not helped by that.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

_COUNTS_ALWAYS = 0.25
"""The part of the time that counts in any case: whoever waits is answered after four times the limit at the latest."""

_AT_ONCE = 0.05
"""The part of a limit before which nothing is looked at, since nearly everything has been answered by then."""


class FairClock:
    """The time that process `pid` has had since this was made: by the clock, less what it stood in line meanwhile."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = time.monotonic()
        self._before = _queued_s(pid)

    def passed_s(self) -> float:
        """Return it; of the threads, the one counts that had to wait longest. Without the kernel's counts: all."""
        passed = time.monotonic() - self._began
        queued = max((total - self._before.get(one, 0.0) for one, total in _queued_s(self._pid).items()), default=0.0)
        return max(passed - queued, passed * _COUNTS_ALWAYS)


@contextlib.asynccontextmanager
async def within(limit_s: float, pid: int) -> AsyncIterator[None]:
    """Raise TimeoutError out of the block once process `pid` has had `limit_s` seconds."""
    loop = asyncio.get_running_loop()
    at_once_s = limit_s * _AT_ONCE
    async with asyncio.timeout(None) as scope:
        timer = loop.call_later(at_once_s, lambda: look(FairClock(pid)))

        def look(clock: FairClock) -> None:
            nonlocal timer
            left_s = limit_s - at_once_s - clock.passed_s()
            if left_s > 0:
                timer = loop.call_later(left_s, look, clock)
            else:
                scope.reschedule(loop.time())

        try:
            yield
        finally:
            timer.cancel()


def _queued_s(pid: int) -> dict[int, float]:
    """Return how many seconds each thread has stood in line in its life; nothing where the kernel does not tell."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):  # a thread that has just ended
                found[int(task.name)] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return found
