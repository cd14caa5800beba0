"""All that one guest can send, one kind after the other, beside a neighbour that goes on being served.

How long the neighbour's requests take is reported, as a multiple of what they take without a flood; a test asserts no
times. What is asserted: each of them is answered, and the proxy's memory stays within bounds.
"""

import asyncio
import json
import statistics

from tests.support import floods
from tests.support.range import Output, Range

FLOODS = (
    ("TLS names", floods.HELLOS, 6_000, 150),
    ("slow streams", floods.STREAMS, 2_200, 300),
    ("SYN", floods.SYNS, 300_000, 5_000),
    ("half-open", floods.HALF_OPEN, 2_000, 100),
)
BOUND_MIB = 400
QUIET = 5
"""Requests of the neighbour that are watched before the floods, and at least during each."""


async def test_floods_leave_the_neighbour_alone(arena: Range, full: bool, measured: list[str]) -> None:
    """EGRESS C1 and H1: 1,024 names switched off egress for the host; 2,200 streams took every request of others."""
    seen: list[tuple[int | None, float]] = []
    async with arena.running(arena.b, floods.WATCH, timeout_s=1800) as output, asyncio.TaskGroup() as group:
        watching = group.create_task(_follow(output, seen))
        await _more(seen, QUIET)
        alone = statistics.median(ms for _, ms in seen)
        for name, lines, whole, some in FLOODS:
            began = len(seen)
            done = await arena.run(arena.a, f"SIZE = ENOUGH = {whole if full else some}\n{lines}", timeout_s=900)
            assert done
            await _more(seen, began + QUIET)
            await arena.heard_again(arena.a)
            meanwhile = seen[began:]
            assert {status for status, _ in meanwhile} == {200}, (name, meanwhile)
            assert arena.rss_mib("egress") < BOUND_MIB, name
            ratio = statistics.median(ms for _, ms in meanwhile) / alone
            measured.append(
                f"{name}: the neighbour's request takes {ratio:.2f} x its own {alone:.0f} ms;"
                f" the proxy holds {arena.rss_mib('egress')} MiB"
            )
        watching.cancel()
    await arena.control()


async def _follow(output: Output, seen: list[tuple[int | None, float]]) -> None:
    while True:
        status, ms = json.loads(await output.line(120))
        seen.append((status, ms))


async def _more(seen: list[tuple[int | None, float]], count: int) -> None:
    async with asyncio.timeout(60):
        while len(seen) < count:
            await asyncio.sleep(0.05)
