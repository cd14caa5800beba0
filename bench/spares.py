"""Waiting until the warm pool is full, so that what is measured next is a warm create.

A spare is ready when the worker has logged that it made it and its ledger still has it.
"""

import asyncio
import json

from bench.client import Refused
from bench.frame import Bench

from space.model.sandbox import DEFAULT_VCPUS
from space.worker.ledger import Ledger
from space.worker.records import Spare

_WITHIN_S = 60.0
_POLL_S = 0.1
_EVENTS = {"spare_made", "spare_adopted"}


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
    made = set()
    for line in (bench.layout.log_dir / "worker.log").read_text().splitlines():
        if '"spare_' in line and (event := json.loads(line))["event"] in _EVENTS:
            made.add(event["vm"])
    return sum(
        spare.vm.vm in made
        and spare.template == bench.template.template.digest
        and (spare.vm.vcpus, spare.vm.memory_mib) == (DEFAULT_VCPUS, memory_mib)
        for spare in Ledger(bench.layout.spares_dir, Spare).read()
    )
