"""Slots made ahead, so that a create does not wait for one. Each is handed out once; its taker destroys it."""

import asyncio
import contextlib

from space.host import netns
from space.host.command import CommandError
from space.layout import Layout
from space.net import addresses, slot
from space.net.slot import Slot
from space.telemetry import logger

_RETRY_S = 1.0

log = logger()


class SlotPool:
    """Keeps `size` slots ready while `run()` runs; without it, or when it is behind, `take()` makes one itself."""

    def __init__(self, layout: Layout, size: int) -> None:
        self._layout = layout
        self._size = size
        self._numbers = addresses.numbers(layout)
        self._ready: list[Slot] = []
        self._taken = asyncio.Event()

    async def take(self) -> Slot:
        """Return a slot that nobody else gets; CommandError when it had to be made and could not."""
        if self._ready:
            self._taken.set()
            return self._ready.pop(0)
        return await self._make()

    async def run(self) -> None:
        """Fill up whenever a slot was taken, for ever. On the way out the slots still waiting are destroyed."""
        try:
            while True:
                self._taken.clear()
                if len(self._ready) < self._size:
                    await self._add_one()
                else:
                    await self._taken.wait()
        finally:
            while self._ready:
                await slot.destroy(self._layout, self._ready.pop().number)

    async def _add_one(self) -> None:
        try:
            made = await self._make()
        except CommandError as error:
            log.warning("slot_making_failed", error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S):
                    await self._taken.wait()
            return
        self._ready.append(made)

    async def _make(self) -> Slot:
        number = await asyncio.to_thread(self._numbers.take)
        while netns.path(self._layout.slot_netns(number)).exists():  # after the wrap: still in use, or a leftover
            number = await asyncio.to_thread(self._numbers.take)
        return await slot.make(self._layout, number)
