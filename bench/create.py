"""How long a client waits from asking for a sandbox to the first output of its first command.

Parts, in this order: `boot` (floor: a bare QEMU boots), `cold` (clones, with the warm pool off, each beside the bare
restore of the same snapshot), `warm` (one client, after the pool has filled up each time), `burst` (many clients at
once). Every create of a burst has to succeed; what does not is counted, shown, and makes the exit status 1.
"""

import argparse
import asyncio
import collections
import dataclasses
import sys
import time

from bench import client, floor, frame, spares
from bench.client import Refused, Start
from bench.figures import Goal, Step, Taken, ms_since, percentile
from bench.frame import Bench
from bench.plot import Bars
from bench.results import Outcome, machine, publish
from tests.support.deployment import Json

from space.cli.output import say
from space.model.sandbox import DEFAULT_MEMORY_MIB

PARTS = ("boot", "cold", "warm", "burst")
_WARM_POOL = 2
_BOOTS = 10
_SHELL_EVERY = 3
"""So many rounds with `args` for one with `cmd`."""
_SMALL_MIB = 128
"""Guests of a burst that would not fit at the default size into an ordinary machine."""

BOOT, RESTORE = "bare QEMU boot + first output", "bare QEMU restore + first output"
COLD, WARM, SHELL = "cold clone, first output", "warm, first output", "warm, first output of `bash -lc`"
_COLD_CALL, _WARM_CALL, _FIRST = "cold clone, create call", "warm, create call", "warm, first command"
_WORKER, _SECOND, _DELETE = "warm, create in the worker", "warm, second command", "delete"


@dataclasses.dataclass(frozen=True, slots=True)
class Burst:
    """So many clients at once, so many times."""

    clients: int
    rounds: int
    memory_mib: int

    @property
    def need_mib(self) -> int:
        """The memory it takes, spares included."""
        return frame.needed_mib(self.clients, self.memory_mib) + frame.needed_mib(_WARM_POOL, DEFAULT_MEMORY_MIB)

    @property
    def name(self) -> str:
        """What it is called in the results."""
        size = "" if self.memory_mib == DEFAULT_MEMORY_MIB else f" of {self.memory_mib} MiB"
        return f"{self.clients} at once{size}"


class Run:
    """What one run has found so far."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.space = bench, bench.space
        self.taken = Taken()
        self.errors: collections.Counter[str] = collections.Counter()
        self.notes: list[str] = []

    async def boots(self, rounds: int) -> None:
        """Measure the floor that snapshots replace."""
        kit = await self.bench.kit(DEFAULT_MEMORY_MIB)
        for number in range(rounds):
            self.taken.note(BOOT, await floor.boot_ms(kit))
            say(f"boot {number + 1} of {rounds}: {self.taken.values[BOOT][-1]:.0f} ms")

    async def colds(self, rounds: int) -> None:
        """Measure clones without spares, each beside a bare restore; the first of both is not counted."""
        kit = await self.bench.kit(DEFAULT_MEMORY_MIB)
        for number in range(rounds + 1):
            bare = await floor.clone_ms(kit)
            found = await client.start(self.space, client.ECHO)
            await client.delete(self.space, found.sandbox)
            if not number:
                continue
            _expect(found, "clone")
            self.taken.note(RESTORE, bare)
            self.taken.note(COLD, found.total_ms)
            self.taken.note(_COLD_CALL, found.create_ms)
            say(f"cold {number} of {rounds}: {found.total_ms:.0f} ms, bare {bare:.0f} ms")

    async def warms(self, rounds: int) -> None:
        """Measure creates that find a full pool; the first is not counted."""
        kit = await self.bench.kit(DEFAULT_MEMORY_MIB)
        await client.delete(self.space, (await client.start(self.space, client.ECHO)).sandbox)
        ways: collections.Counter[str] = collections.Counter()
        for number in range(1, rounds + 1):
            found = await self._warm(client.ECHO)
            ways[found.way] += 1
            second = await client.output_ms(self.space, found.sandbox, client.ECHO)
            gone = await client.delete(self.space, found.sandbox)
            # just after a create the pool leaves the cores alone, so this has them for itself too
            self.taken.note(RESTORE, await floor.clone_ms(kit))
            for step, value in (
                (WARM, found.total_ms),
                (_WARM_CALL, found.create_ms),
                (_WORKER, found.worker_ms),
                (_FIRST, found.command_ms),
                (_SECOND, second),
                (_DELETE, gone),
            ):
                self.taken.note(step, value)
            say(f"warm {number} of {rounds}: {found.total_ms:.0f} ms ({found.way})")
            if number % _SHELL_EVERY == 0:
                found = await self._warm(client.SHELL)
                ways[found.way] += 1
                await client.delete(self.space, found.sandbox)
                self.taken.note(SHELL, found.total_ms)
        self.notes.append("one at a time, creates got: " + ", ".join(f"{way} {n}" for way, n in ways.items()))

    async def _warm(self, command: Json) -> Start:
        await spares.full(self.bench, _WARM_POOL, DEFAULT_MEMORY_MIB)
        return await client.start(self.space, command)

    async def burst(self, burst: Burst) -> None:
        """Let many clients create at once, each time with a full pool, and delete what they got."""
        await self.bench.frozen(burst.memory_mib)
        await client.delete(self.space, (await self._create(burst)).sandbox)
        ways: collections.Counter[str] = collections.Counter()
        for number in range(1, burst.rounds + 1):
            await spares.full(self.bench, _WARM_POOL, burst.memory_mib)
            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                clients = [group.create_task(self._tried(burst)) for _ in range(burst.clients)]
            whole_ms = ms_since(began)
            good = [found for each in clients if (found := each.result()) is not None]
            ways.update(found.way for found in good)
            for found in good:
                self.taken.note(burst.name, found.total_ms)
            self.taken.note(f"{burst.name}, all", whole_ms)
            say(f"{burst.name}, {number} of {burst.rounds}: {len(good)} good, all in {whole_ms / 1000:.1f} s")
            await client.delete_all(self.space)
        asked, got = burst.clients * burst.rounds, sum(ways.values())
        how = ", ".join(f"{way} {n}" for way, n in ways.items())
        self.notes.append(f"{burst.name}: {got} of {asked} succeeded ({100 * got / asked:.1f} %): {how}")

    async def _create(self, burst: Burst) -> Start:
        return await client.start(self.space, client.ECHO, memory_mib=burst.memory_mib)

    async def _tried(self, burst: Burst) -> Start | None:
        try:
            return await self._create(burst)
        except Refused as error:
            self.errors[f"{burst.name}: {error}"] += 1
            return None

    def outcome(self, bursts: list[Burst]) -> Outcome:
        """Return what was found."""
        taken = self.taken
        steps = [
            Step(BOOT),
            Step(RESTORE),
            Step(COLD, RESTORE),
            Step(_COLD_CALL),
            Step(WARM, RESTORE),
            Step(SHELL, RESTORE),
            *map(Step, (_WARM_CALL, _WORKER, _FIRST, _SECOND, _DELETE)),
            *(Step(name, RESTORE) for burst in bursts for name in (burst.name, f"{burst.name}, all")),
        ]
        goals = []
        if WARM in taken.values:
            worst = percentile(taken.values[WARM], 99) / taken.median(WARM)
            goals += [
                Goal("median of warm creates to first output, ms", taken.median(WARM), 60),
                Goal("their p99 by their median", worst, 3),
            ]
        if COLD in taken.values:
            goals.append(Goal("cold clone by its floor", taken.ratio(COLD, RESTORE), 1.3))
        chart = Bars("From create() to the first output", taken.lines(steps))
        return Outcome("create", steps, taken, goals, chart, self.notes, dict(self.errors), {"warm_pool": _WARM_POOL})


def _expect(found: Start, way: str) -> None:
    if found.way != way:
        raise Refused(f"A create that was to be a {way} was a {found.way}; the worker's log says why.")


async def measure(options: argparse.Namespace) -> bool:
    """Do the parts that were asked for; returns whether all creates succeeded."""
    bursts, skipped = _plan(options)
    if set(options.parts) == {"burst"} and not bursts:
        sys.exit(f"error: {'; '.join(skipped)}")
    need_mib = max([burst.need_mib for burst in bursts], default=frame.needed_mib(_WARM_POOL + 2, DEFAULT_MEMORY_MIB))
    cold_first = bool({"boot", "cold"} & set(options.parts))
    async with frame.opened(options.data, memory_mib=need_mib, warm_pool=0 if cold_first else _WARM_POOL) as bench:
        run = Run(bench)
        run.notes += skipped
        if "boot" in options.parts:
            await run.boots(min(_BOOTS, options.rounds))
        if "cold" in options.parts:
            await run.colds(options.rounds)
        if cold_first and {"warm", "burst"} & set(options.parts):
            await bench.restart(_WARM_POOL)
        if "warm" in options.parts:
            await run.warms(options.rounds)
        for burst in bursts:
            await run.burst(burst)
        facts = machine(bench)
    return publish(run.outcome(bursts), options.results, facts)


def _plan(options: argparse.Namespace) -> tuple[list[Burst], list[str]]:
    if "burst" not in options.parts:
        return [], []
    wanted = [
        Burst(
            clients,
            max(1, options.burst_creates // clients),
            memory_mib=_SMALL_MIB if clients > 10 else DEFAULT_MEMORY_MIB,
        )
        for clients in options.clients
    ]
    reasons = {burst: frame.lacking(burst.need_mib) for burst in wanted}
    return (
        [burst for burst, short in reasons.items() if short is None],
        [f"{burst.name}: left out, since it {short}" for burst, short in reasons.items() if short is not None],
    )


def main() -> None:
    """Measure, and publish."""
    parser = frame.parser("create", __doc__)
    parser.add_argument(
        "--rounds", type=frame.positive, default=30, help="of one client, warm and cold (default: %(default)s)"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help="default: all")
    parser.add_argument(
        "--clients",
        nargs="+",
        type=frame.positive,
        default=[10, 50],
        metavar="N",
        help="bursts of so many (default: 10 50)",
    )
    parser.add_argument(
        "--burst-creates",
        type=frame.positive,
        default=50,
        metavar="N",
        help="creates of each kind of burst (default: %(default)s)",
    )
    frame.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
