"""How long pause, resume, suspend, restore and fork take, against how much memory was written just before.

Beside them, in each round: a cold clone (what a restore and a fork compare with), a bare QEMU that is restored, stopped
and continued, and the raw writing and syncing of as many bytes as the suspension stored. The warm pool is off.

A suspension has three ends: the sandbox is out of the worker's account of memory, its client has the answer, and it
would survive a loss of power.
"""

import argparse
import time

from bench import client, floor, frame
from bench.bare import Kit
from bench.facts import Facts, watched
from bench.figures import Goal, Step, Taken, ms_since
from bench.frame import Bench
from bench.plot import Curves
from bench.results import Outcome, machine, publish

from space.cli.output import say
from space.disk import bases, chunks
from space.disk import frozen as storage
from space.disk.frozen import Frozen
from space.model.sandbox import DEFAULT_MEMORY_MIB

_VMS = 3
"""The sandbox, its fork or a clone, and a bare VM."""
_MB = 10**6
_SEED_MB = 4
_GOAL_DIRTY_MB = 100

BARE, COLD = "bare QEMU restore + first output", "cold clone + first output"
HALT, PAUSE, RESUME, BOTH = "bare QEMU stop + cont", "pause", "resume", "pause + resume"
GONE, ANSWERED, DURABLE = "suspend, out of RAM", "suspend, answered", "suspend, durable"
RAW, STORED = "raw write + fsync of what it stored", "memory it stored"
RESTORE, RESTORED = "restore", "restore + first output"
FORK, FORKED = "fork", "fork + first output"
_STEPS = (BARE, COLD, HALT, PAUSE, RESUME, BOTH, GONE, ANSWERED, DURABLE, RAW, RESTORE, RESTORED, FORK, FORKED)
_FLOORS = {COLD: BARE, BOTH: HALT, DURABLE: RAW, RESTORED: COLD, FORKED: COLD}
_DRAWN = (BARE, COLD, BOTH, GONE, ANSWERED, DURABLE, RAW, RESTORED, FORKED)


def _at(step: str, dirty_mb: int) -> str:
    return f"{dirty_mb} MB dirty: {step}"


class Run:
    """One sandbox's rounds at one amount of memory that is written anew before each verb."""

    def __init__(self, bench: Bench, kit: Kit, facts: Facts, dirty_mb: int) -> None:
        self.bench, self.space, self.kit, self.facts = bench, bench.space, kit, facts
        self.dirty_mb = dirty_mb
        self.taken = Taken()
        self.sandbox = ""

    async def rounds(self, rounds: int, taken: Taken) -> None:
        """Do everything once for warming up, and then so many times into `taken`."""
        self.sandbox = (await client.start(self.space, client.ECHO)).sandbox
        await self._shell(f"head -c {_SEED_MB * _MB} /dev/urandom >/dev/shm/seed")
        for number in range(rounds + 1):
            self.taken = taken if number else Taken()
            await self._pause()
            await self._suspend()
            await self._fork()
            await self._clones()
            say(f"{self.dirty_mb} MB dirty, round {number} of {rounds}" if number else f"{self.dirty_mb} MB dirty")
        await client.delete_all(self.space)

    async def _pause(self) -> None:
        await self._dirty()
        pause = await client.verb_ms(self.space, self.sandbox, "pause")
        resume = await client.verb_ms(self.space, self.sandbox, "resume")
        self._note(PAUSE, pause)
        self._note(RESUME, resume)
        self._note(BOTH, pause + resume)

    async def _suspend(self) -> None:
        await self._dirty()
        began = time.monotonic()
        self._note(ANSWERED, await client.verb_ms(self.space, self.sandbox, "suspend"))
        gone_at, fact = await self.facts.when(self.sandbox, lambda fact: fact.state == "suspended", began)
        durable_at, _ = await self.facts.when(
            self.sandbox, lambda fact: fact.state == "suspended" and fact.durable, began
        )
        self._note(GONE, (gone_at - began) * 1000)
        self._note(DURABLE, (durable_at - began) * 1000)
        size_bytes = _own_bytes(Frozen(self.bench.layout, f"s-{self.sandbox}-{fact.generation}"))
        self._note(STORED, size_bytes / _MB)
        self._note(RAW, await floor.write_ms(self.space.data, size_bytes))
        began = time.monotonic()
        self._note(RESTORE, await client.verb_ms(self.space, self.sandbox, "restore"))
        await client.output_ms(self.space, self.sandbox, client.ECHO)
        self._note(RESTORED, ms_since(began))

    async def _fork(self) -> None:
        await self._dirty()
        began = time.monotonic()
        found = await client.ask(self.space, "POST", f"/v1/sandboxes/{self.sandbox}/fork", {"count": 1})
        self._note(FORK, ms_since(began))
        child = found["results"][0]
        if child["sandbox"] is None:
            raise client.Refused(f"The fork failed: {child['error']}")
        await client.output_ms(self.space, child["sandbox"]["id"], client.ECHO)
        self._note(FORKED, ms_since(began))
        await client.delete(self.space, child["sandbox"]["id"])

    async def _clones(self) -> None:
        self._note(BARE, await floor.clone_ms(self.kit))
        self._note(HALT, await floor.halt_ms(self.kit))
        clone = await client.start(self.space, client.ECHO)
        await client.delete(self.space, clone.sandbox)
        self._note(COLD, clone.total_ms)

    async def _dirty(self) -> None:
        """Write so much of the guest's memory anew, over itself."""
        if self.dirty_mb:
            copies = f"for i in $(seq {-(-self.dirty_mb // _SEED_MB)}); do cat /dev/shm/seed; done"
            await self._shell(f"{copies} | dd of=/dev/shm/dirty bs=1M conv=notrunc status=none")

    async def _shell(self, line: str) -> None:
        await client.output_ms(self.space, self.sandbox, {"cmd": f"{line} && echo done"})

    def _note(self, step: str, value: float) -> None:
        self.taken.note(_at(step, self.dirty_mb), value)


async def measure(options: argparse.Namespace) -> bool:
    """Go through the amounts of dirty memory, one sandbox for each."""
    taken = Taken()
    need_mib = frame.needed_mib(_VMS, DEFAULT_MEMORY_MIB)
    async with (
        frame.opened(options.data, memory_mib=need_mib, warm_pool=0) as bench,
        watched(bench.worker) as facts,
    ):
        kit = await bench.kit(DEFAULT_MEMORY_MIB)
        for dirty_mb in options.dirty:
            await Run(bench, kit, facts, dirty_mb).rounds(options.rounds, taken)
        found = machine(bench)
    return publish(_outcome(taken, options.dirty), options.results, found)


def _own_bytes(suspension: Frozen) -> int:
    """Return how much of a settled suspension's memory is not its template's."""
    manifest = storage.read(suspension)
    assert manifest is not None
    table = storage.read_tables(suspension, manifest)["memory"]
    like = bases.with_memory(bases.of(suspension, manifest), "stored_memory")
    own = chunks.difference(table, like[1]) if like else set(table.digests)
    return len(own) * chunks.CHUNK_BYTES


def _outcome(taken: Taken, amounts: list[int]) -> Outcome:
    steps: list[Step] = []
    goals: list[Goal] = []
    for dirty_mb in amounts:
        for name in _STEPS:
            under = _FLOORS.get(name)
            steps.append(Step(_at(name, dirty_mb), under and _at(under, dirty_mb)))
        steps.append(Step(_at(STORED, dirty_mb), unit="MB"))
        goals += _goals(taken, dirty_mb)
    points = {name: [(float(mb), taken.median(_at(name, mb))) for mb in amounts] for name in _DRAWN}
    chart = Curves(
        "Lifecycle",
        "memory written just before, MB",
        "median, ms",
        points,
        frozenset({COLD, BARE, RAW}),
        logarithmic=True,
    )
    return Outcome("lifecycle", steps, taken, goals, chart)


def _goals(taken: Taken, dirty_mb: int) -> list[Goal]:
    limits = {BOTH: 20} | ({GONE: 100, DURABLE: 1000} if dirty_mb == _GOAL_DIRTY_MB else {})
    restored = _at(RESTORED, dirty_mb)
    return [
        *(Goal(f"{_at(name, dirty_mb)}, ms", taken.median(_at(name, dirty_mb)), most) for name, most in limits.items()),
        Goal(f"{restored}, by a cold clone", taken.ratio(restored, _at(COLD, dirty_mb)), 1.3),
    ]


def main() -> None:
    """Measure, and publish."""
    parser = frame.parser("lifecycle", __doc__)
    parser.add_argument("--rounds", type=frame.positive, default=10, help="for each amount (default: %(default)s)")
    parser.add_argument(
        "--dirty",
        nargs="+",
        type=int,
        choices=range(221),
        default=[0, 100, 200],
        metavar="MB",
        help="amounts of memory, at most 220 (default: 0 100 200)",
    )
    frame.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
