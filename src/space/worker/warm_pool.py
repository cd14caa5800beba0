"""Clones kept ready: started, warmed and idle, so that a create only has to tell one who it is.

For each template and size that was asked for lately, up to `size` of them. They are made one at a time while nothing
else starts, use memory that nobody needs, and are given up when somebody does. A restart of the worker keeps them.
"""

import asyncio
import collections
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine

from space.guest import agent
from space.guest.agent import AgentError, AgentSilent
from space.image import catalog
from space.model.errors import SpaceError
from space.model.ids import SandboxId, TemplateDigest, new_id
from space.telemetry import logger
from space.vmm.driver import VmmError
from space.wire.gateway import SlotEntry
from space.worker.guest_vm import Died, GuestVm, Identity
from space.worker.host import Host
from space.worker.ledger import Ledger
from space.worker.records import Spare, VmRecord
from space.worker.shelf import Shape, Shelf

log = logger()
DEMAND_S = 3600.0
"""How long after a create its template and size stay in demand."""
_QUIET_S, _SHORT_QUIET_S = 2.0, 0.5
"""How long after a create nothing is made: while some are ready, and when none is left."""
_POLL_S = 0.1
_AGENT_S = 30.0
_RETRY_S = 5.0
Wake = Callable[[Identity], Coroutine[None, None, None]]


class WarmPool:
    """The spares of a worker. `room` tells whether a clone of so many MiB may be made, `busy` whether one starts."""

    def __init__(
        self,
        host: Host,
        shelf: Shelf,
        ledger: Ledger[Spare],
        size: int,
        *,
        room: Callable[[int], bool],
        busy: Callable[[], bool],
    ) -> None:
        self._host, self._shelf, self._ledger, self._size = host, shelf, ledger, size
        self._room, self._busy = room, busy
        self._ready: dict[Shape, collections.deque[GuestVm]] = collections.defaultdict(collections.deque)
        self._demand: dict[Shape, float] = {}
        self._changed = asyncio.Event()
        self._making: VmRecord | None = None

    def want(self, shape: Shape) -> None:
        """Note that this was asked for; the pool keeps some of it ready from now on."""
        self._demand[shape] = time.monotonic()
        self._changed.set()

    async def claim(self, template: str, vcpus: int, memory_mib: int) -> tuple[GuestVm, Wake] | None:
        """Return a spare and what makes it a sandbox's, or None. It is the caller's from now on."""
        if self._shelf.keeps_state(template):  # a spare of it would run somebody's code for nobody
            return None
        shape = Shape(template, vcpus, memory_mib)
        self.want(shape)
        ready = self._ready[shape]
        while ready:
            guest = ready.popleft()
            if guest.vm.alive:
                return guest, functools.partial(self._wake, guest)
            await self._give_up(guest)
        return None

    async def _wake(self, guest: GuestVm, identity: Identity) -> None:
        self._ledger.remove(guest.record.vm)  # its owner's record names the VM by now
        await guest.initialise(identity, "fork")

    def records(self) -> list[VmRecord]:
        """Return what the spares hold, the one being made too."""
        found = [guest.record for ready in self._ready.values() for guest in ready]
        return [*found, self._making] if self._making else found

    async def give_back(self, memory_mib: int) -> None:
        """End spares, the least wanted first, until so much memory is free or none is left."""
        for shape in sorted(self._ready, key=lambda shape: self._demand.get(shape, 0.0)):
            while self._ready[shape] and not self._room(memory_mib):
                await self._give_up(self._ready[shape].popleft())

    async def adopt(self) -> None:
        """Take over the spares of a former worker process; what does not answer, or was not finished, is ended."""
        for spare in self._ledger.read():
            record = spare.vm.on_this_boot()
            try:
                vm = (
                    await self._host.driver.adopt(self._host.layout.vm_dir(record.vm), record.vmm)
                    if record.vmm
                    else None
                )
            except VmmError:
                vm = None
            guest = GuestVm(self._host, record, self._note(spare.template), vm)
            if vm is None or not spare.ready:
                await self._give_up(guest)
                continue
            shape = Shape(spare.template, record.vcpus, record.memory_mib)
            self._ready[shape].append(guest)
            self._demand.setdefault(shape, time.monotonic())
            log.info("spare_adopted", vm=record.vm)

    def release(self) -> None:
        """Let go of the spares and leave them: the worker is about to stop."""
        for guests in self._ready.values():
            for guest in guests:
                guest.release()

    async def run(self) -> None:
        """Fill up whenever there is too little, for ever."""
        while True:
            self._changed.clear()
            shape = self._short()
            if shape is None or not self._room(shape.memory_mib):
                await self._until_changed(_RETRY_S)
                continue
            if self._busy() or time.monotonic() < self._quiet_until(shape):
                await asyncio.sleep(_POLL_S)
                continue
            try:
                await self._make(shape)
            except (SpaceError, OSError, Died, VmmError, AgentError, AgentSilent) as error:
                log.warning("spare_failed", template=shape.template, error=str(error))
                await asyncio.sleep(_RETRY_S)

    async def _until_changed(self, longest_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._changed.wait()

    def _quiet_until(self, shape: Shape) -> float:
        """Return when the next spare may be begun: making one takes a core from those who were just served."""
        asked = self._demand.get(shape, 0.0)
        return asked + (_QUIET_S if self._ready[shape] else _SHORT_QUIET_S)

    def _short(self) -> Shape | None:
        now = time.monotonic()
        self._demand = {shape: asked for shape, asked in self._demand.items() if now - asked < DEMAND_S}
        for shape in sorted(self._demand, key=lambda shape: -self._demand[shape]):
            found = self._shelf.find(shape.template, shape.vcpus, shape.memory_mib)
            if found is not None and len(self._ready[shape]) < self._size:
                return shape
        return None

    async def _make(self, shape: Shape) -> None:
        snapshot = self._shelf.find(shape.template, shape.vcpus, shape.memory_mib)
        if snapshot is None:
            return
        template = catalog.find(self._host.layout, TemplateDigest(shape.template))
        guest = GuestVm.fresh(self._host, shape.vcpus, shape.memory_mib, self._note(shape.template))
        try:
            await guest.start(template, snapshot)
            nobody = Identity(new_id(), {}, new_id())
            await guest.initialise(nobody, "warm")
            await guest.unless_dead(agent.warm(guest.line, _AGENT_S))
            await self._try_path(guest, nobody.token)
            await guest.initialise(nobody, "fork")  # what `_wake` will do
            self._ledger.write(guest.record.vm, Spare(template=shape.template, vm=guest.record, ready=True))
        except BaseException:
            await self._give_up(guest)
            raise
        finally:
            self._making = None
        self._ready[shape].append(guest)
        log.info("spare_made", template=shape.template, vm=guest.record.vm)

    async def _try_path(self, guest: GuestVm, token: str) -> None:
        """See requests arrive through the data path, under the VM's own name, so that its taker need not."""
        vm = SandboxId(guest.record.vm)
        await self._host.link.admit(vm, SlotEntry.model_validate({"address": guest.slot.address}))
        try:
            await self._host.probe(vm, guest.line.limit)
            await self._host.rehearse(vm, token)
        finally:
            await self._host.link.withdraw(vm)

    def _note(self, template: str) -> Callable[[VmRecord], None]:
        def note(record: VmRecord) -> None:
            self._making = record
            self._ledger.write(record.vm, Spare(template=template, vm=record))

        return note

    async def _give_up(self, guest: GuestVm) -> None:
        await guest.end()
        self._ledger.remove(guest.record.vm)
