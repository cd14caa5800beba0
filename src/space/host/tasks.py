"""Waiting for the first of several things, on 3.11's TaskGroup."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def first(*steps: Coroutine[Any, Any, T]) -> T:
    """Run all at once; the first to end decides, with its result or its error. The others are cancelled and awaited."""
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def body(step: Coroutine[Any, Any, T]) -> None:
        try:
            result = await step
        except Exception as error:  # noqa: BLE001 - carried over to the caller
            if not outcome.done():
                outcome.set_exception(error)
        else:
            if not outcome.done():
                outcome.set_result(result)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(body(step)) for step in steps]
        try:
            await asyncio.wait([outcome])
        finally:
            for task in tasks:
                task.cancel()
    return outcome.result()
