"""worker.machine: what is told of an order that was not carried through."""

import asyncio
import datetime as dt
from typing import cast

import pytest

from space.model.errors import Conflict, SpaceError, Unavailable
from space.worker.host import Host
from space.worker.machine import Machine
from space.worker.records import Entry
from space.worker.stock import Stock

_DEADLINE_S = 30


@pytest.fixture
def machine() -> Machine:
    """One that holds nothing, so that its life needs no host until it is deleted."""
    entry = Entry(
        sandbox="a1" * 10,
        epoch=1,
        state="suspended",
        template="sha256:" + "0" * 64,
        vcpus=1,
        memory_mib=512,
        created_at=dt.datetime.now(dt.UTC),
    )
    return Machine(cast("Host", None), cast("Stock", None), entry, lambda _: None)


@pytest.mark.parametrize(("deleted", "told"), [(False, Unavailable), (True, Conflict)], ids=["cut off", "deleted"])
async def test_nobody_is_told_of_a_deletion_that_was_not_asked(
    machine: Machine,
    deleted: bool,
    told: type[SpaceError],
) -> None:
    begun = asyncio.Event()

    async def act() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def ask() -> None:
        with pytest.raises(told):
            await machine._ask(act)

    async with asyncio.timeout(_DEADLINE_S), asyncio.TaskGroup() as group:
        life = group.create_task(machine.carry_on())
        group.create_task(ask())
        await begun.wait()
        if deleted:
            machine._delete_asked.set()
        life.cancel()


async def test_an_order_that_comes_after_a_deletion_is_answered(machine: Machine) -> None:
    """A restore had been admitted, which can take a while; its client waited for as long as clients wait."""
    machine._delete_asked.set()
    machine._gone.set()
    async with asyncio.timeout(_DEADLINE_S):
        with pytest.raises(Conflict, match="deleted"):
            await machine.suspend(memory=True)
