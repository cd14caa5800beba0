"""When the worker told what: its facts about sandboxes, with the time each came, on its own connection."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

from bench.client import Refused

from space.wire.worker import SandboxFact
from space.wire.worker_client import WorkerClient

_WITHIN_S = 120.0


class Facts:
    """What has been told since the watch began."""

    def __init__(self, worker: WorkerClient) -> None:
        self._worker = worker
        self._told: list[tuple[float, SandboxFact]] = []
        self._news = asyncio.Event()

    async def follow(self) -> None:
        """Take in facts for ever; raises Unavailable when the worker goes away."""
        async for fact in self._worker.watch():
            if isinstance(fact, SandboxFact):
                self._told.append((time.monotonic(), fact))
                self._news.set()

    async def when(self, sandbox: str, test: Callable[[SandboxFact], bool], after: float) -> tuple[float, SandboxFact]:
        """Return the first fact about a sandbox after `after` that passes `test`, and when it came (monotonic seconds).

        Raises Refused where none comes within two minutes.
        """
        try:
            async with asyncio.timeout(_WITHIN_S):
                while True:
                    self._news.clear()
                    for at, fact in self._told:
                        if at > after and fact.id == sandbox and test(fact):
                            return at, fact
                    await self._news.wait()
        except TimeoutError as error:
            raise Refused(
                f"The worker did not tell of {sandbox} within {_WITHIN_S:g} s what was waited for."
            ) from error


@contextlib.asynccontextmanager
async def watched(worker: WorkerClient) -> AsyncGenerator[Facts]:
    """Follow the worker's facts for the length of the block."""
    facts = Facts(worker)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(facts.follow())
        try:
            yield facts
        finally:
            task.cancel()
