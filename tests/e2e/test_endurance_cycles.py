"""Sleeping and waking many times over: what was written once is there after every cycle, alone and beside others."""

import asyncio
import random

from tests.support.deployment import Deployment, vms
from tests.support.witness import Witness


async def _cycle(witness: Witness) -> None:
    space, sandbox = witness.space, witness.sandbox
    await witness.write()
    assert (await space.order(sandbox, "suspend"))["state"] == "suspended"
    assert sandbox not in vms(space.data), "a suspended sandbox holds a VM"
    assert (await space.order(sandbox, "restore"))["state"] == "running"
    await witness.check()


async def test_cycle_after_cycle_loses_nothing(space: Deployment, sandbox: str, rng: random.Random, full: bool) -> None:
    witness = Witness(space, sandbox, rng)
    await witness.begin()
    for _ in range(50 if full else 8):
        await _cycle(witness)
    await witness.goes_on()
    listed = (await space.http.get(f"/v1/sandboxes/{sandbox}/commands/{witness.counter}")).json()
    assert listed["running"] is True


async def test_sandboxes_sleep_and_wake_beside_each_other(space: Deployment, rng: random.Random, full: bool) -> None:
    cycles = 20 if full else 3
    made = [await space.create() for _ in range(5)]
    witnesses = [Witness(space, one, random.Random(rng.random())) for one in made]

    async def live(witness: Witness) -> None:
        await witness.begin()
        for _ in range(cycles):
            await _cycle(witness)
        await witness.goes_on()

    try:
        async with asyncio.TaskGroup() as group:
            for witness in witnesses:
                group.create_task(live(witness))
    finally:
        for one in made:
            await space.delete(one)
