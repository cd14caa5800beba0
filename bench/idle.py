"""How long the first command takes in a sandbox that was left alone, beside a bare QEMU that was left alone as long.

All sandboxes wait at the same time, so a run takes as long as its longest wait, and about a minute.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable

from bench import bare, client, frame
from bench.figures import Step, Taken
from bench.frame import Bench
from bench.plot import Curves
from bench.results import Outcome, machine, publish

from space.cli.output import say

_AT_ONCE = "without waiting"
_BARE_AT_ONCE = "bare QEMU, without waiting"
_WARM_UPS = 4
"""Commands before: under emulation the first ones are translated, which is not what is measured here."""
_MEMORY_MIB = 256
_AGAIN, _BARE_AGAIN = "the one after it", "bare QEMU, the one after it"


@dataclasses.dataclass(frozen=True, slots=True)
class _Vm:
    """A sandbox, or a bare VM: how to run a command in it, and the names of its steps."""

    idle_s: float
    command: Callable[[], Awaitable[float]]
    at_once: str
    waited: str
    again: str


def _names(idle_s: float) -> tuple[str, str]:
    return f"after {idle_s:g} s", f"bare QEMU, after {idle_s:g} s"


async def _started(bench: Bench, idle_s: float, stack: contextlib.AsyncExitStack) -> list[_Vm]:
    """Start a sandbox and a bare VM, and warm both."""
    kit = await bench.kit(_MEMORY_MIB)
    sandbox = (await client.start(bench.space, client.ECHO, memory_mib=_MEMORY_MIB)).sandbox
    bare_vm = await stack.enter_async_context(bare.cloned(kit, await stack.enter_async_context(bare.place(kit.layout))))

    async def command() -> float:
        return await client.output_ms(bench.space, sandbox, client.ECHO)

    ours, its = _names(idle_s)
    found = [
        _Vm(idle_s, command, _AT_ONCE, ours, _AGAIN),
        _Vm(idle_s, bare_vm.echo, _BARE_AT_ONCE, its, _BARE_AGAIN),
    ]
    for vm in found:
        for _ in range(_WARM_UPS):
            await vm.command()
    return found


async def _wait(vms: list[_Vm], taken: Taken) -> None:
    """Run a command in each, and another when it has waited; those that wait longest begin first."""
    due: list[tuple[float, _Vm]] = []
    for vm in sorted(vms, key=lambda vm: -vm.idle_s):
        await vm.command()
        taken.note(vm.at_once, await vm.command())
        due.append((time.monotonic() + vm.idle_s, vm))
    for at, vm in sorted(due, key=lambda waiting: waiting[0]):
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        taken.note(vm.waited, await vm.command())
        taken.note(vm.again, await vm.command())
        say(f"{vm.waited}: {taken.values[vm.waited][-1]:.0f} ms, again {taken.values[vm.again][-1]:.0f} ms")


async def measure(options: argparse.Namespace) -> bool:
    """Start all, and let them wait."""
    need_mib = frame.needed_mib(2 * len(options.seconds) * options.sandboxes, _MEMORY_MIB)
    taken = Taken()
    async with (
        frame.opened(options.data, memory_mib=need_mib, warm_pool=0) as bench,
        contextlib.AsyncExitStack() as stack,
    ):
        vms: list[_Vm] = []
        for idle_s in options.seconds:
            for number in range(options.sandboxes):
                vms += await _started(bench, idle_s, stack)
                say(f"to wait {idle_s:g} s: {number + 1} of {options.sandboxes}")
        await _wait(vms, taken)
        await client.delete_all(bench.space)
        facts = machine(bench)
    return publish(_outcome(taken, sorted(options.seconds)), options.results, facts)


def _outcome(taken: Taken, idles: list[float]) -> Outcome:
    steps = [Step(_AT_ONCE, _BARE_AT_ONCE)]
    steps += [Step(ours, its) for ours, its in map(_names, idles)]
    steps += [
        Step(_AGAIN, _BARE_AGAIN),
        Step(_BARE_AT_ONCE),
        *(Step(its) for _, its in map(_names, idles)),
        Step(_BARE_AGAIN),
    ]
    names = [(0.0, (_AT_ONCE, _BARE_AT_ONCE)), *((idle_s, _names(idle_s)) for idle_s in idles)]
    points = {
        label: [(idle_s, taken.median(pair[which])) for idle_s, pair in names]
        for which, label in enumerate(("sandbox", "bare QEMU"))
    }
    chart = Curves("First command after a time without any", "idle, s", "median, ms", points, frozenset({"bare QEMU"}))
    return Outcome("idle", steps, taken, (), chart)


def main() -> None:
    """Measure, and publish."""
    parser = frame.parser("idle", __doc__)
    parser.add_argument(
        "--seconds",
        nargs="+",
        type=float,
        default=[5, 60, 600],
        metavar="S",
        help="how long they wait (default: 5 60 600)",
    )
    parser.add_argument(
        "--sandboxes", type=frame.positive, default=5, help="so many for each wait (default: %(default)s)"
    )
    frame.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
