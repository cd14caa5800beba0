"""Waiting for the first of several things, or for all of them, on 3.11's TaskGroup, with plain errors."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


async def first(*steps: Coroutine[Any, Any, T]) -> T:
    """Run all at once; the first to end decides, with its result or its error. The others are cancelled and awaited."""
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def body(step: Coroutine[Any, Any, T]) -> None:
        try:
            result = await step
        except Exception as error:  # noqa: BLE001 - carried over to the caller
            if not outcome.done():
                outcome.set_exception(error)
        else:
            if not outcome.done():
                outcome.set_result(result)
        if not decided.done():
            decided.set_result(None)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(body(step)) for step in steps]
        try:
            await decided
        finally:
            for task in tasks:
                task.cancel()
    return outcome.result()


async def together(*steps: Coroutine[Any, Any, None]) -> None:
    """Run all at once and wait for all; the first error is raised as it is, and the others are cancelled by it."""
    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(step)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def first_of(error: BaseException, kind: type[E]) -> E | None:
    """Return the first error of this kind in `error`, which may be a TaskGroup's group of them; else None."""
    if isinstance(error, kind):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := first_of(one, kind)) is not None), None)
    return None
