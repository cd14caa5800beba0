"""One sandbox on this host, from its first VM to nothing. One task owns it: orders are done one after another.

    creating -> running <-> paused            a VM is there
    running, paused -> suspending -> suspended -> restoring -> running       it lies in storage meanwhile
    any -> failed                             holds nothing; waits to be deleted
    any -> deleting -> gone

Each step is in the ledger before what it makes can be lost. A step that fails half way is undone: a suspension leaves
the sandbox running, a restore leaves it suspended. What a killed worker left half done is finished or undone by the
next (adopt.py).
"""

import asyncio
import collections
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from space.disk.frozen import Frozen, Manifest
from space.guest import agent
from space.guest.agent import AgentError, AgentSilent
from space.host.room import check_room
from space.host.tasks import first
from space.image.catalog import TemplateFiles
from space.model.errors import Conflict, InvalidArgument, SandboxFailed, SpaceError, Stale, Unavailable
from space.model.ids import SandboxId
from space.telemetry import logger
from space.wire.agent import FreezeReason
from space.wire.gateway import EgressOrder
from space.wire.worker import Activity, SandboxFact, UsageSample
from space.worker import starting, stopping, storing
from space.worker.guest_vm import Died, GuestVm, Identity
from space.worker.holding import Holding
from space.worker.host import Host
from space.worker.records import Entry
from space.worker.stock import Stock
from space.worker.usage import UsageLog
from space.worker.watch import Watch

log = logger()
T = TypeVar("T")
_ACQUAINT_S = 1.0
_FIRST_WRITES_BYTES = 64 * 1024**2
"""A disk is a reflink and takes nothing; what a guest writes while it boots and works does."""


class _Order:
    """Something to be done by the machine's task, and where its outcome goes."""

    def __init__(self, act: Callable[[], Awaitable[Any]]) -> None:
        self.act = act
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.outcome.add_done_callback(lambda done: done.cancelled() or done.exception())  # its asker may have left


class Machine:
    """A sandbox's task and what it holds. `run()` and its kin are its life; everything else only asks."""

    def __init__(self, host: Host, stock: Stock, entry: Entry, changed: Callable[[Entry], None]) -> None:
        self._has = Holding(host, stock, entry, changed)
        self._watch = Watch(self._has)
        self._orders: collections.deque[_Order] = collections.deque()
        self._ordered = asyncio.Event()
        self._delete_asked = asyncio.Event()
        self._settled = asyncio.Event()
        self._gone = asyncio.Event()
        self._failure: SpaceError | None = None
        self._usage = UsageLog()

    @property
    def entry(self) -> Entry:
        """What the ledger has of it."""
        return self._has.entry

    @property
    def sandbox(self) -> SandboxId:
        """Its id."""
        return self._has.sandbox

    # -- asked from outside --------------------------------------------------------------------------------------------

    @property
    def holding(self) -> Holding:
        """What it holds, for those that bring it to where a former worker process left it."""
        return self._has

    def fact(self) -> SandboxFact:
        """Return what is true of it now."""
        e = self.entry
        return SandboxFact(
            id=e.sandbox,
            state=e.state,
            reason=e.reason,
            epoch=e.epoch,
            timings_ms=e.timings_ms,
            generation=e.generation,
            durable=e.durable,
            egress_generation=e.egress.generation if e.egress else 0,
            secrets_generation=self._has.host.link.secrets_generation(self.sandbox),
        )

    def fence(self, epoch: int) -> None:
        """Go by a newer epoch; the caller has checked that it is not older.

        It is in the ledger when what it came with is answered, or sooner: a caller who has not been answered asks again
        with a newer one.
        """
        self._has.fence(epoch)

    async def settled(self) -> SandboxFact:
        """Wait until it has started; raises what kept it from that."""
        self._has.keep()
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure
        return self.fact()

    async def delete(self) -> None:
        """Ask for its end and wait until nothing of it is left."""
        self._delete_asked.set()
        await self._gone.wait()

    async def pause(self) -> SandboxFact:
        """Stop its vCPUs."""
        return await self._order(lambda: stopping.pause(self._has))

    async def resume(self) -> SandboxFact:
        """Let its vCPUs run again."""
        return await self._order(lambda: stopping.resume(self._has))

    async def suspend(self, *, memory: bool) -> SandboxFact:
        """Put it to storage."""
        return await self._order(lambda: storing.suspend(self._has, memory=memory))

    async def restore(self, identity: Identity, template: TemplateFiles, egress: EgressOrder | None) -> SandboxFact:
        """Bring it back from storage; from its first packet on it goes by `egress`, where that is newer."""

        async def act() -> None:
            if egress is not None and self._newer(egress):
                self._has.write(egress=egress)
            await storing.restore(self._has, identity, template)

        return await self._order(act)

    async def put_egress(self, egress: EgressOrder) -> None:
        """Let this leave from now on; beside the orders, since it must not wait for any. Raises Stale, InvalidPolicy.

        In the ledger first: whatever happens in between, a later start goes by the newest that was asked for.
        """
        if not self._newer(egress) and egress != self.entry.egress:
            raise Stale("A newer policy is in force already.")
        before = self.entry.egress
        self._has.write(egress=egress)
        try:
            await self._has.host.link.put_egress(self.sandbox, egress)
        except InvalidArgument:
            self._has.write(egress=before)
            raise

    def note_name(self, address: str, name: str) -> None:
        """Record that its guest is given an address for a name. OSError where the ledger cannot be written."""
        if self.entry.names.get(address, name) != name:
            raise ValueError(f"{address} stands for another name already")
        self._has.write(names={**self.entry.names, address: name})

    def _newer(self, egress: EgressOrder) -> bool:
        return self.entry.egress is None or egress.generation > self.entry.egress.generation

    async def copy_to(self, target: Frozen, reason: FreezeReason, *, memory: bool) -> Manifest:
        """Freeze a copy of it as it is at one moment; it goes on."""
        return await self._ask(lambda: storing.copy_to(self._has, target, reason, memory=memory))

    async def activity(self) -> Activity:
        """Return what is going on in it; beside the orders, since it changes nothing."""
        guest = self._has.guest
        if guest is None or self.entry.state != "running":
            raise Conflict(f"The sandbox is {self.entry.state}.", code=f"sandbox_{self.entry.state}")
        try:
            told = await agent.activity(guest.line, stopping.AGENT_S)
        except (AgentError, AgentSilent) as error:
            raise Unavailable("The sandbox's agent does not answer.") from error
        return Activity(
            foreground_commands=told.foreground_commands,
            attached_readers=told.attached_readers,
            open_connections=told.open_connections,
        )

    async def usage(self) -> list[UsageSample]:
        """Return what it used lately, and now if it runs."""
        guest = self._has.guest
        if guest is not None and self.entry.state == "running":
            await self._usage.take(guest)
        return self._usage.samples

    async def _order(self, act: Callable[[], Awaitable[None]]) -> SandboxFact:
        await self._ask(act)
        return self.fact()

    async def _ask(self, act: Callable[[], Awaitable[T]]) -> T:
        if self._delete_asked.is_set() or self._gone.is_set():  # nobody will look at it
            raise self._failure or Conflict("The sandbox was deleted.", code="sandbox_deleted")
        order = _Order(act)
        self._put(order)
        result: T = await asyncio.shield(order.outcome)
        return result

    def _put(self, order: _Order) -> None:
        self._orders.append(order)
        self._ordered.set()

    # -- its life ------------------------------------------------------------------------------------------------------

    async def run(self, identity: Identity, template: TemplateFiles, source: Frozen | None) -> None:
        """Live a whole life. `source` None: as the template has it; else a copy of that frozen VM."""
        try:
            await first(self._start(identity, template, source), self._until_delete_asked())
        except SpaceError as error:
            await self._fail(error)
        await self._live()

    async def carry_on(self) -> None:
        """Live on with what its holding was found to be after a former worker process."""
        if self.entry.state == "failed":
            self._failure = SandboxFailed(self.entry.reason or "The sandbox failed.")
        self._settled.set()
        await self._live()

    async def mourn(self, error: SpaceError) -> None:
        """Live on as a sandbox whose VM is found dead, or can no longer be looked after."""
        await self._fail(error)
        await self._live()

    def give_up(self, error: SpaceError) -> None:
        """Let nobody wait for it any longer: it cannot even be told as failed."""
        self._failure = error
        self._settled.set()
        self._gone.set()
        for order in self._orders:
            order.outcome.set_exception(error)

    def release(self) -> None:
        """Let go of the VM and leave it running: the worker is about to stop."""
        if self._has.guest is not None:
            self._has.guest.release()

    async def _live(self) -> None:
        while not self._delete_asked.is_set():
            guest = self._has.guest
            with self._acquainting(guest):
                reason = await first(self._obey_all(guest), self._watch.until_dead(guest), self._until_delete_asked())
            if reason is not None:
                await self._fail(SandboxFailed(f"The VM ended: {reason}."))
        await self._finish()

    @contextlib.contextmanager
    def _acquainting(self, guest: GuestVm | None) -> Iterator[None]:
        """Order some time after it was given this VM, when nobody is kept waiting, what makes its first pause quick."""
        if guest is None:
            yield
            return
        order = _Order(lambda: stopping.acquaint(self._has, guest))
        timer = asyncio.get_running_loop().call_later(_ACQUAINT_S, self._put, order)
        try:
            yield
        finally:
            timer.cancel()

    async def _obey_all(self, guest: GuestVm | None) -> None:
        """Carry out orders, for as long as this is its VM."""
        while self._has.guest is guest:
            await self._ordered.wait()
            with self._watch.aside():
                await self._obey(self._orders.popleft())

    async def _obey(self, order: _Order) -> None:
        if not self._orders:
            self._ordered.clear()
        try:
            if self.entry.state == "failed":
                raise self._failure or SandboxFailed("The sandbox failed.")
            result = await order.act()
            self._has.keep()
        except SpaceError as error:
            self._has.keep()
            order.outcome.set_exception(error)
        except Died as error:
            failure = SandboxFailed(f"The VM ended: {error}.")
            await self._fail(failure)
            order.outcome.set_exception(failure)
        else:
            order.outcome.set_result(result)
        finally:
            if not order.outcome.done():
                order.outcome.set_exception(self._cut_off())

    def _cut_off(self) -> SpaceError:
        """Return what is told of an order that was ended in the middle."""
        if self._delete_asked.is_set():
            return Conflict("The sandbox was deleted.", code="sandbox_deleted")
        return Unavailable("The worker was interrupted while it did this. Try again.")  # by the VM's end, or its own

    async def _until_delete_asked(self) -> None:
        await self._delete_asked.wait()

    # -- start ---------------------------------------------------------------------------------------------------------

    async def _start(self, identity: Identity, template: TemplateFiles, source: Frozen | None) -> None:
        began = time.monotonic()
        check_room(self._has.host.layout.disk_area, _FIRST_WRITES_BYTES, "A sandbox")
        how = await starting.start_vm(self._has, identity, template, source)
        vm_ms = round(1e3 * (time.monotonic() - began), 1)
        if how != "spare":
            await self._has.connect()
        total_ms = round(1e3 * (time.monotonic() - began), 1)
        self._has.write(state="running", timings_ms={how: vm_ms, "total": total_ms})
        log.info("sandbox_started", sandbox=self.sandbox, how=how, total_ms=total_ms)
        self._settled.set()

    # -- end -----------------------------------------------------------------------------------------------------------

    async def _fail(self, error: SpaceError) -> None:
        """Record the failure first, so that the API can say it at once, then give back what the VM held."""
        log.warning("sandbox_failed", sandbox=self.sandbox, reason=str(error))
        self._failure = error
        self._has.write(state="failed", reason=str(error))
        await self._end_vm()
        self._settled.set()

    async def _finish(self) -> None:
        self._failure = self._failure or Conflict("The sandbox was deleted.", code="sandbox_deleted")
        self._has.write(state="deleting")
        for order in self._orders:
            order.outcome.set_exception(self._failure)
        await self.forget()
        self._settled.set()
        self._gone.set()

    async def forget(self) -> None:
        """Give back all it holds, in storage too, whatever state it is in."""
        await self._end_vm()
        for frozen in self._has.all_stored().values():
            await self._has.stock.settler.drop(frozen)
        self._has.host.link.forget(self.sandbox)
        self._has.host.ledger.remove(self.sandbox)

    async def _end_vm(self) -> None:
        await self._has.host.link.withdraw(self.sandbox)
        await self._has.drop_guest()
