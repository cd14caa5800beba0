"""Facts about sandboxes, told to everyone who watches: first all that is, then `synced`, then each change."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence

from space.wire.worker import HEARTBEAT_S, AnyFact, GoneFact, HeartbeatFact, RotatedFact, SandboxFact, SyncedFact

_BACKLOG = 4096


class FactHub:
    """Fans facts out. A watcher too slow to keep up is cut off; it comes back and is told everything again."""

    def __init__(self, boot_id: str, current: Callable[[], Sequence[AnyFact]], free_mib: Callable[[], int]) -> None:
        self._boot_id, self._current, self._free_mib = boot_id, current, free_mib
        self._watchers: set[asyncio.Queue[AnyFact | None]] = set()

    def publish(self, fact: SandboxFact | GoneFact | RotatedFact) -> None:
        """Tell all watchers; never waits."""
        for queue in list(self._watchers):
            try:
                queue.put_nowait(fact)
            except asyncio.QueueFull:
                self._watchers.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)

    def close(self) -> None:
        """End every watch, so that the server can stop."""
        for queue in list(self._watchers):
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    async def watch(self) -> AsyncGenerator[AnyFact]:
        """Yield facts until the watcher leaves, is too slow, or the hub closes."""
        queue: asyncio.Queue[AnyFact | None] = asyncio.Queue(_BACKLOG)
        self._watchers.add(queue)  # before the list is read: a change in between is told twice, never missed
        try:
            for fact in self._current():
                yield fact
            yield SyncedFact(boot_id=self._boot_id)
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        fact_or_end = await queue.get()
                except TimeoutError:
                    yield HeartbeatFact(memory_free_mib=self._free_mib())
                    continue
                if fact_or_end is None:
                    return
                yield fact_or_end
        finally:
            self._watchers.discard(queue)
