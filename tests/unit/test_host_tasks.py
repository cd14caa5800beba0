"""host.tasks.first: the first to end decides, and nothing is left running."""

import asyncio

import pytest

from space.host.tasks import first, first_of


async def _value(value: str, delay_s: float = 0) -> str:
    await asyncio.sleep(delay_s)
    return value


async def _error() -> str:
    raise LookupError("no")


async def test_first_result_wins_and_the_other_is_cancelled() -> None:
    ended: list[str] = []

    async def slow() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("slow")
        return "slow"

    assert await first(_value("quick"), slow()) == "quick"
    assert ended == ["slow"]


async def test_first_error_is_raised_as_it_is_not_in_a_group() -> None:
    with pytest.raises(LookupError):
        await first(_error(), _value("late", 60))


async def test_cancellation_reaches_every_step() -> None:
    ended: list[int] = []

    async def step(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(first(step(1), step(2)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
    assert sorted(ended) == [1, 2]


def test_the_first_of_a_kind_is_found_in_groups_of_groups() -> None:
    wanted = LookupError("deep")
    group = BaseExceptionGroup("outer", [ValueError(), ExceptionGroup("inner", [OSError(), wanted]), LookupError()])
    assert first_of(group, LookupError) is wanted
    assert first_of(wanted, LookupError) is wanted
    assert first_of(group, KeyError) is None
