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
from space.model.sandbox import DEFAULT_MEMORY_MIB

_AT_ONCE = "first command at once"
_BARE_AT_ONCE = "bare QEMU, first command at once"
_AGAIN, _BARE_AGAIN = "the one after it", "bare QEMU, the one after it"


@dataclasses.dataclass(order=True)
class _Wait:
    """A VM that waits until `due` (monotonic seconds) for a command."""

    due: float
    idle_s: float = dataclasses.field(compare=False)
    command: Callable[[], Awaitable[float]] = dataclasses.field(compare=False)
    names: tuple[str, str] = dataclasses.field(compare=False)


def _names(idle_s: float) -> tuple[str, str]:
    return f"after {idle_s:g} s", f"bare QEMU, after {idle_s:g} s"


async def _waits(
    bench: Bench, idles: list[float], count: int, taken: Taken, stack: contextlib.AsyncExitStack
) -> list[_Wait]:
    """Start VMs, those that wait longest first, run two commands in each, and return them waiting."""
    kit = await bench.kit(DEFAULT_MEMORY_MIB)
    found = []
    for idle_s in sorted(idles, reverse=True):
        ours, its = _names(idle_s)
        for number in range(count):
            sandbox = (await client.start(bench.space, client.ECHO)).sandbox

            async def command(sandbox: str = sandbox) -> float:
                return await client.output_ms(bench.space, sandbox, client.ECHO)

            vm = await stack.enter_async_context(
                bare.cloned(kit, await stack.enter_async_context(bare.place(kit.layout)))
            )
            await vm.echo()
            for run, at_once, names in (
                (command, _AT_ONCE, (ours, _AGAIN)),
                (vm.echo, _BARE_AT_ONCE, (its, _BARE_AGAIN)),
            ):
                taken.note(at_once, await run())
                found.append(_Wait(time.monotonic() + idle_s, idle_s, run, names))
            say(f"waiting {idle_s:g} s: {number + 1} of {count}")
    return found


async def measure(options: argparse.Namespace) -> bool:
    """Let VMs wait, and command each when its time has come."""
    need_mib = frame.needed_mib(2 * len(options.seconds) * options.sandboxes, DEFAULT_MEMORY_MIB)
    taken = Taken()
    async with (
        frame.opened(options.data, memory_mib=need_mib, warm_pool=0) as bench,
        contextlib.AsyncExitStack() as stack,
    ):
        for wait in sorted(await _waits(bench, options.seconds, options.sandboxes, taken, stack)):
            await asyncio.sleep(max(0.0, wait.due - time.monotonic()))
            first, again = wait.names
            taken.note(first, await wait.command())
            taken.note(again, await wait.command())
            say(f"{first}: {taken.values[first][-1]:.0f} ms, again {taken.values[again][-1]:.0f} ms")
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
    chart = Curves("First command after a time without any", "idle, s", "median, ms", points)
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
    parser.add_argument("--sandboxes", type=int, default=5, help="so many for each wait (default: %(default)s)")
    frame.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
