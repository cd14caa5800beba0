"""Looks after a sandbox's VM between orders.

It sees the VM's end, ends one that hangs, continues one whose disk has room again, and ends the connections of one
whose network is dead. While an order is carried out it does nothing, and what it found out meanwhile does not count.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import NoReturn

from space.disk import area
from space.host.command import CommandError
from space.host.tasks import first
from space.telemetry import logger
from space.vmm.driver import Vm, VmmError, VmStatus
from space.worker.guest_vm import GuestVm
from space.worker.holding import Holding

log = logger()
_ROOM_POLL_S = 1.0
_LAST_WORD_S = 2.0
_PING_EVERY_S = 5.0
_MISSED_PINGS = 3
"""So many in a row, each given seconds: a busy host is slow to answer, a hung VMM never does."""
_REACH_EVERY_S, _REACH_PATIENCE_S = 10.0, 15.0
"""How often a guest's network is tried, and how long it may take: three repeats of a lost packet."""
_UNREACHED = 2
"""After so many failures in a row its connections are ended."""


class Watch:
    """Over the VM that a sandbox has at the time; it stays the same from order to order, until it is given another."""

    def __init__(self, holding: Holding) -> None:
        self._has = holding
        self._free = asyncio.Event()
        self._free.set()
        self._orders = 0
        self._hung = False

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Leave the VM to an order for the length of the block."""
        self._free.clear()
        try:
            yield
        finally:
            self._orders += 1
            self._free.set()

    async def until_dead(self, guest: GuestVm | None) -> str:
        """Return why the sandbox's VM ended; for ever where there is none, or it has another by then."""
        if guest is None or not guest.started:  # an order that came at once has ended it already
            await asyncio.Event().wait()
        assert guest is not None
        self._hung, vm = False, guest.vm
        return await first(
            self._ended(guest, vm), self._tend(guest, vm), self._ping(guest, vm), self._mind_network(guest)
        )

    async def _turn(self, guest: GuestVm) -> None:
        """Wait until no order is carried out; for ever once this is not the sandbox's VM any more."""
        while not self._free.is_set():
            await self._free.wait()
        if self._has.guest is not guest:
            await asyncio.Event().wait()

    def _alone_since(self, orders: int) -> bool:
        return self._free.is_set() and self._orders == orders

    async def _ended(self, guest: GuestVm, vm: Vm) -> str:
        reason = (await vm.wait()).reason
        await self._turn(guest)
        return "the VMM stopped answering and was killed" if self._hung else reason

    async def _kill(self, guest: GuestVm, vm: Vm) -> str:
        self._hung = True
        await vm.kill()
        return await self._ended(guest, vm)

    async def _tend(self, guest: GuestVm, vm: Vm) -> str:
        status = VmStatus.RUNNING
        while (status := await vm.next_status(status)) is not VmStatus.GONE:
            await self._turn(guest)
            if vm.status is status:
                await self._follow(guest, vm, status)
        await self._turn(guest)
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                return await self._ended(guest, vm)
        except TimeoutError:
            return await self._kill(guest, vm)

    async def _follow(self, guest: GuestVm, vm: Vm, status: VmStatus) -> None:
        """Report a VM whose disk writes fail on the host as paused, and continue it when there is room again."""
        if status not in (VmStatus.DISK_FULL, VmStatus.DISK_ERROR):
            return
        self._has.write(state="paused", reason=str(status))
        log.warning("sandbox_paused", sandbox=self._has.sandbox, reason=str(status))
        while vm.status is status:
            await asyncio.sleep(_ROOM_POLL_S)
            await self._turn(guest)
            if area.has_room(self._has.host.layout):
                with contextlib.suppress(VmmError):
                    await vm.resume()
                    break
        await self._turn(guest)
        self._has.write(state="running", reason=None)
        log.info("sandbox_resumed", sandbox=self._has.sandbox)

    async def _ping(self, guest: GuestVm, vm: Vm) -> str:
        missed = 0
        while missed < _MISSED_PINGS:
            await asyncio.sleep(_PING_EVERY_S)
            await self._turn(guest)
            orders = self._orders
            try:
                await vm.ping()
                missed = 0
            except VmmError:
                missed = missed + 1 if self._alone_since(orders) else 0
        return await self._kill(guest, vm)

    async def _mind_network(self, guest: GuestVm) -> NoReturn:
        """End the connections to a guest that takes none any more (its network device is down), again and again.

        TCP would let a request hang for a quarter of an hour, and a stream for ever. New ones are refused at once.
        """
        missed = 0
        while True:
            await asyncio.sleep(_REACH_EVERY_S)
            await self._turn(guest)
            if self._has.entry.state != "running":
                continue
            orders = self._orders
            if await guest.is_reachable(_REACH_PATIENCE_S) or not self._alone_since(orders):
                missed = 0
                continue
            missed += 1
            if missed < _UNREACHED:
                continue
            if missed == _UNREACHED:
                log.warning("sandbox_unreachable", sandbox=self._has.sandbox)
            try:
                await guest.cut_off()
            except (CommandError, OSError) as error:  # tried again; it is no reason to end the VM
                log.warning("connections_not_ended", sandbox=self._has.sandbox, error=str(error))
