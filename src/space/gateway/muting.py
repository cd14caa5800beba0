"""Connections that come to nothing: names that may not be reached, no name, no TLS. Each costs proxy and gateway work.

The proxy asks for a certificate without saying for whom (EGRESS M3), so that nobody can be refused there. But it logs
each connection that ended, with its address. A sandbox whose budget of such connections is used up is muted: packet
rules of the host refuse its new TCP connections, at no cost to anybody else, until the budget is there again by half.
What it has open goes on, and so does all that comes to it.
"""

import asyncio
import time

from space.gateway.allowance import BURST, PER_S
from space.gateway.audit import Audit
from space.gateway.guests import Guest
from space.gateway.orders import Orders
from space.model.errors import Unavailable
from space.telemetry import logger
from space.wire import gateway as wire

_TELL_EVERY_S = 60.0
log = logger()


class Muting:
    """Has the worker mute sandboxes, without anybody waiting for it."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._wanted: asyncio.Queue[tuple[Guest, float]] = asyncio.Queue()

    def count(self, guest: Guest) -> None:
        """Count a connection that came to nothing."""
        seconds = guest.wasted.take(time.monotonic())
        if seconds:
            self._wanted.put_nowait((guest, seconds))

    async def run(self, orders: Orders) -> None:
        """Pass on what is wanted, for ever."""
        while True:
            guest, seconds = await self._wanted.get()
            try:
                await orders.carry_out(lambda order: _line(guest, seconds, order))  # noqa: B023 - called before the next turn
            except Unavailable:
                guest.wasted.muted_until_s = 0  # the next one asks again
                continue
            self._tell(guest, seconds)

    def _tell(self, guest: Guest, seconds: float) -> None:
        """Make one event of a flood, and another each minute that it goes on."""
        now_s = time.monotonic()
        log.warning("sandbox_muted", sandbox=guest.sandbox, seconds=round(seconds, 1))
        if guest.wasted.told_at_s is not None and now_s < guest.wasted.told_at_s + _TELL_EVERY_S:
            return
        guest.wasted.told_at_s = now_s
        why = (
            f"refused_handshakes: over {BURST:.0f} connections came to nothing (names that may not be reached, no TLS),"
            f" more than {PER_S:.0f} a second; new ones are refused for {seconds:.0f} s"
        )
        self._audit.note("alarm", guest.sandbox, why=why)


def _line(guest: Guest, seconds: float, order: int) -> wire.Mute:
    return wire.Mute(order=order, sandbox=guest.sandbox, seconds=seconds)
