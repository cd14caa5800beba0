"""Waiting until the warm pool is full, so that what is measured next is a warm create.

Which spares there are, and which of them are ready, is in the worker's ledger.
"""

import asyncio

from bench.client import Refused
from bench.frame import Bench

from space.model.sandbox import DEFAULT_VCPUS
from space.worker.ledger import Ledger
from space.worker.records import Spare

_WITHIN_S = 60.0
_POLL_S = 0.1


async def full(bench: Bench, count: int, memory_mib: int) -> None:
    """Return when `count` spares of a size that was asked for are ready; raises Refused after a minute."""
    try:
        async with asyncio.timeout(_WITHIN_S):
            while _ready(bench, memory_mib) < count:
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        log = bench.layout.log_dir / "worker.log"
        raise Refused(f"The warm pool was not full after {_WITHIN_S:g} s; {log} says why.") from error


def _ready(bench: Bench, memory_mib: int) -> int:
    return sum(
        spare.ready
        and spare.template == bench.template.template.digest
        and (spare.vm.vcpus, spare.vm.memory_mib) == (DEFAULT_VCPUS, memory_mib)
        for spare in Ledger(bench.layout.spares_dir, Spare).read()
    )
