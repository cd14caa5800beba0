"""How much memory idle sandboxes take: what is private to each VMM's process, by smaps_rollup, beside a bare QEMU.

Pages of a guest's memory are mapped from a file that is the VM's own, so they count as private: nobody shares them.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from bench import bare, client, frame
from bench.figures import Goal, Step, Taken
from bench.frame import Bench
from bench.plot import Curves
from bench.results import Outcome, machine, publish
from tests.support.deployment import vmm_pids

from space.cli.output import say

_MIB_KIB = 1024
_BARE = "bare QEMU, private"
_GOAL_MIB = 95.4
"""100 MB."""


def _private_mib(pid: int) -> tuple[float, float]:
    """Return what is private to a process, and how much of that is the guest's memory, in MiB."""
    return _sum(Path(f"/proc/{pid}/smaps_rollup"), ""), _sum(Path(f"/proc/{pid}/smaps"), "/mem")


def _sum(smaps: Path, mapped: str) -> float:
    """Add up the private pages of the mappings whose file's name ends with `mapped`."""
    total_kib, counts = 0, False
    for line in smaps.read_text().splitlines():
        key, *rest = line.split()
        if not key.endswith(":"):
            counts = line.rstrip().endswith(mapped)
        elif counts and key in ("Private_Clean:", "Private_Dirty:"):
            total_kib += int(rest[0])
    return total_kib / _MIB_KIB


async def _bare(bench: Bench, memory_mib: int, idle_s: float, taken: Taken) -> None:
    kit = await bench.kit(memory_mib)
    async with bare.place(kit.layout) as at, bare.cloned(kit, at) as vm:
        await vm.echo()
        await asyncio.sleep(idle_s)
        taken.note(_BARE, _private_mib(vm.pid)[0])


def _steps(count: int) -> tuple[str, str]:
    return f"private, {count} idle", f"of that guest memory, {count} idle"


async def measure(options: argparse.Namespace) -> bool:
    """Start more and more sandboxes, and look at all of them each time."""
    memory_mib, notes = options.memory, []
    counts = []
    for count in sorted(options.counts):
        short = frame.lacking(frame.needed_mib(count + 1, memory_mib))
        if short is None:
            counts.append(count)
        else:
            notes.append(f"{count} sandboxes: left out, since that {short}")
    if not counts:
        sys.exit(f"error: {'; '.join(notes)}")
    taken = Taken()
    need_mib = frame.needed_mib(max(counts) + 1, memory_mib)
    async with frame.opened(options.data, memory_mib=need_mib, warm_pool=0) as bench:
        await _bare(bench, memory_mib, options.idle, taken)
        there = 0
        for count in counts:
            while there < count:
                await client.start(bench.space, client.ECHO, memory_mib=memory_mib)
                there += 1
                say(f"sandbox {there} of {count}")
            await asyncio.sleep(options.idle)
            for pid in vmm_pids(bench.space.data):
                for step, value in zip(_steps(count), _private_mib(pid), strict=True):
                    taken.note(step, value)
        await client.delete_all(bench.space)
        facts = machine(bench)
    outcome = _outcome(taken, counts, notes, memory_mib)
    return publish(outcome, options.results, facts)


def _outcome(taken: Taken, counts: list[int], notes: list[str], memory_mib: int) -> Outcome:
    steps = [Step(_BARE, unit="MiB")]
    for count in counts:
        whole, guest = _steps(count)
        steps += [Step(whole, _BARE, "MiB"), Step(guest, unit="MiB")]
    goals = [
        Goal(f"median private memory of {count} idle VMs, MiB", taken.median(_steps(count)[0]), _GOAL_MIB)
        for count in counts
    ]
    points = {
        label: [(count, taken.median(_steps(count)[which])) for count in counts]
        for which, label in enumerate(("private to the VMM's process", "of that the guest's memory"))
    }
    points[_BARE] = [(count, taken.median(_BARE)) for count in counts]
    chart = Curves(
        f"Memory of an idle sandbox of {memory_mib} MiB", "sandboxes at once", "median, MiB", points, frozenset({_BARE})
    )
    return Outcome("density", steps, taken, goals, chart, notes, settings={"memory_mib": memory_mib})


def main() -> None:
    """Measure, and publish."""
    parser = frame.parser("density", __doc__)
    parser.add_argument(
        "--memory", type=frame.positive, default=128, metavar="MIB", help="of each guest (default: %(default)s)"
    )
    parser.add_argument(
        "--counts", nargs="+", type=frame.positive, default=[1, 10, 50], metavar="N", help="default: 1 10 50"
    )
    parser.add_argument(
        "--idle", type=float, default=10, metavar="S", help="wait before each look, in seconds (default: %(default)s)"
    )
    frame.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
