"""Deadlines that leave out what a process stands in line for a processor."""

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.support.deployment import eventually

from space.host.patience import FairClock, within

_SPIN = ("/usr/bin/python3", "-c", "while True: pass")
_LONG_S, _DEADLINE_S = 0.5, 30.0


@contextlib.asynccontextmanager
async def _spinning(count: int) -> AsyncGenerator[list[int]]:
    """Processes that have one processor between them, and use it; yields their pids."""
    one = min(os.sched_getaffinity(0))
    made = [subprocess.Popen(("taskset", "-c", str(one), *_SPIN)) for _ in range(count)]
    try:
        for process in made:
            spins = lambda pid=process.pid: int(_stat(pid)[11]) > 5  # noqa: E731 - ticks as a user, 10 ms each
            await eventually(spins, within_s=_DEADLINE_S, what="it spins")
        yield [process.pid for process in made]
    finally:
        for process in made:
            process.kill()
            process.wait()


def _stat(pid: int) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the third on: the state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


async def test_time_in_line_for_a_processor_is_left_out() -> None:
    async with _spinning(4) as pids:
        clock, began = FairClock(pids[0]), time.monotonic()

        def mostly_queued() -> bool:
            passed = time.monotonic() - began
            return passed > _LONG_S and clock.passed_s() < 0.7 * passed

        await eventually(mostly_queued, within_s=_DEADLINE_S, what="most of the time does not count")
        assert clock.passed_s() >= 0.25 * _LONG_S, "a part counts in any case"


async def test_a_process_that_sleeps_has_all_of_the_time() -> None:
    with subprocess.Popen(("/usr/bin/sleep", "1000")) as sleeping:
        asleep = lambda: Path(f"/proc/{sleeping.pid}/wchan").read_text() == "hrtimer_nanosleep"  # noqa: E731
        await eventually(asleep, within_s=_DEADLINE_S, what="it sleeps")
        clock, began = FairClock(sleeping.pid), time.monotonic()
        await eventually(lambda: clock.passed_s() > _LONG_S, within_s=_DEADLINE_S, what="time counts")
        passed = time.monotonic() - began
        assert clock.passed_s() > 0.9 * passed
        sleeping.kill()


async def test_of_one_that_is_gone_all_counts() -> None:
    with subprocess.Popen(("/usr/bin/true",)) as gone:
        gone.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(_DEADLINE_S), within(0.1, gone.pid):
                await asyncio.Event().wait()


async def test_a_starved_process_is_given_longer() -> None:
    """A VM of an overloaded host was given up after 30 s in which it had run for less than one."""
    async with _spinning(4) as pids:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with within(_LONG_S, pids[0]):
                await asyncio.Event().wait()
        assert time.monotonic() - began > 1.2 * _LONG_S
