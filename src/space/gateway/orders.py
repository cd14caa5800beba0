"""What the worker has to do before the gateway goes on: told on its watch, answered with `done`."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable

from space.model.errors import Unavailable
from space.wire import gateway as wire

_DONE_S = 2.0
"""Recording a name takes the worker some milliseconds; a guest's resolver asks again after five seconds."""
_HEARTBEAT_S = 1.0
_HEARTBEAT = wire.Heartbeat().model_dump_json()


class Orders:
    """The orders under way, and the one watch on which they are told."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Event] = {}
        self._watch: asyncio.Queue[str | None] | None = None
        self._closed = False

    async def carry_out(
        self,
        order: Callable[[int], wire.Order],
        within_s: float = _DONE_S,
    ) -> None:
        """Tell the worker and wait until it has done it. `order` gets a number.

        Raises Unavailable where no worker watches, or when it takes too long.
        """
        if self._watch is None:
            raise Unavailable("The worker of this host is not there; it may be restarting. Try again.")
        number, event = next(self._numbers), asyncio.Event()
        self._open[number] = event
        try:
            self._watch.put_nowait(order(number).model_dump_json())
            async with asyncio.timeout(within_s):
                await event.wait()
        except TimeoutError:
            raise Unavailable("The worker of this host did not answer in time. Try again.") from None
        finally:
            del self._open[number]

    def done(self, number: int) -> None:
        """Note that an order was carried out; fine for one that nobody waits for any more."""
        if number in self._open:
            self._open[number].set()

    def close(self) -> None:
        """End the watch, and any that begins after it, so that the server can stop."""
        self._closed = True
        if self._watch is not None:
            self._watch.put_nowait(None)

    async def watch(self) -> AsyncGenerator[str]:
        """Yield lines for the worker, at least one a second. A newer watch ends this one, and so does `close`."""
        if self._closed:
            return
        mine: asyncio.Queue[str | None] = asyncio.Queue()
        if self._watch is not None:
            self._watch.put_nowait(None)
        self._watch = mine
        line: str | None = _HEARTBEAT
        try:
            while line is not None:
                yield line + "\n"
                try:
                    async with asyncio.timeout(_HEARTBEAT_S):
                        line = await mine.get()
                except TimeoutError:
                    line = _HEARTBEAT
        finally:
            if self._watch is mine:
                self._watch = None
