"""Passes the gateway's events on to the control plane, which cannot dial the gateway itself."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from space.model.errors import Unavailable
from space.wire.gateway import GatewayClient

_BACKLOG = 256
"""Events held for a reader that is behind; more wait in the gateway's own ring."""


class EventRelay:
    """Streams of events, all of which end when the gateway goes or `close` is called."""

    def __init__(self, client: GatewayClient) -> None:
        self._client = client
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End every stream, so that the server can stop."""
        self._closing.set()

    async def lines(self, boot: str, after: int) -> AsyncGenerator[str]:
        """Yield events as JSON lines; see GatewayClient.events for `boot` and `after`."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(_BACKLOG)

        async def fill() -> None:
            with contextlib.suppress(Unavailable):
                async with contextlib.aclosing(self._client.events(boot, after)) as events:
                    async for event in events:
                        await queue.put(event.model_dump_json() + "\n")
            await queue.put(None)

        async def end() -> None:
            await self._closing.wait()
            await queue.put(None)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fill()), group.create_task(end())]
            try:
                while (line := await queue.get()) is not None and not self._closing.is_set():
                    yield line
            finally:
                for task in tasks:
                    task.cancel()
