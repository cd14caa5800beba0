"""One sandbox on this host, from slot to running VM and back to nothing. One task owns it; no lock is needed.

    start:  slot -> disk and memory -> VMM -> agent -> gateway -> probe through the data path
    watch:  the VMM's end, a full disk, or the wish to delete
    end:    gateway -> VMM -> slot (its sockets first) -> cgroup -> files

Each step is written to the ledger before what it makes can be lost. Ending works from any half-done state, and twice.
"""

import asyncio
import base64
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import TypeVar

from space.disk import area, rootfs
from space.guest.agent import AgentError, initialise
from space.host import netns
from space.host.command import CommandError
from space.host.room import check_room
from space.host.tasks import first
from space.image.catalog import TemplateFiles
from space.model.errors import BootFailed, Conflict, SandboxFailed, SpaceError, Unavailable
from space.model.ids import SandboxId
from space.net import slot as slots
from space.telemetry import logger
from space.vmm.driver import BootSpec, Vm, VmmError, VmStatus
from space.wire.agent import AgentInit
from space.wire.worker import SandboxFact, StartSandbox
from space.worker.host import Host
from space.worker.ledger import Entry

log = logger()
T = TypeVar("T")
_BOOT_ATTEMPTS = 2
_ROOM_POLL_S = 1.0
_LAST_WORD_S = 2.0
_FIRST_WRITES_BYTES = 64 * 1024**2
"""A disk is a reflink and takes nothing; what a guest writes while it boots and works does."""


class _Died(Exception):
    """The VMM ended while it was starting."""


class Machine:
    """A sandbox's task and what it holds. `run()` is its life; everything else only asks."""

    def __init__(self, host: Host, entry: Entry, changed: Callable[[Entry], None]) -> None:
        self._host, self._changed = host, changed
        self.entry = entry
        self.sandbox = SandboxId(entry.sandbox)
        self._vm: Vm | None = None
        self._delete_asked = asyncio.Event()
        self._settled = asyncio.Event()
        self._gone = asyncio.Event()
        self._failure: SpaceError | None = None

    def fact(self) -> SandboxFact:
        """Return what is true of it now."""
        e = self.entry
        return SandboxFact(id=e.sandbox, state=e.state, reason=e.reason, epoch=e.epoch, timings_ms=e.timings_ms)

    def fence(self, epoch: int) -> None:
        """Remember a newer epoch; the caller has checked that it is not older."""
        self._write(epoch=epoch)

    async def settled(self) -> SandboxFact:
        """Wait until it runs; raises what kept it from running."""
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure
        return self.fact()

    async def delete(self) -> None:
        """Ask for its end and wait until nothing of it is left."""
        self._delete_asked.set()
        await self._gone.wait()

    async def run(self, wish: StartSandbox, template: TemplateFiles) -> None:
        """Live a whole life: start, watch, end."""
        try:
            await first(self._start(wish, template), self._until_delete_asked())
        except SpaceError as error:
            await self._fail(error)
        else:
            await self._watch()
        await self._finish()

    async def carry_on(self, vm: Vm) -> None:
        """Live on from a VM that a former worker process started."""
        self._vm = vm
        self._settled.set()
        await self._watch()
        await self._finish()

    async def rest(self) -> None:
        """Live on as a sandbox that has failed: hold nothing, wait to be deleted."""
        self._failure = SandboxFailed(self.entry.reason or "The sandbox failed.")
        self._settled.set()
        await self._finish()

    async def mourn(self, error: SpaceError) -> None:
        """Live on as a sandbox whose VM is found dead, or can no longer be looked after."""
        await self._fail(error)
        await self._finish()

    async def undo(self) -> None:
        """Give back what a half-done start or deletion of a former worker process left, and forget the sandbox."""
        await self._end()
        self._host.ledger.remove(self.sandbox)

    def release(self) -> None:
        """Let go of the VM and leave it running: the worker is about to stop."""
        if self._vm is not None:
            self._vm.release()

    # -- start ---------------------------------------------------------------------------------------------------------

    async def _start(self, wish: StartSandbox, template: TemplateFiles) -> None:
        began = time.monotonic()
        marks: dict[str, float] = {}

        def mark(step: str) -> None:
            marks[step] = round(1e3 * (time.monotonic() - began), 1)

        layout = self._host.layout
        check_room(layout.disk_area, _FIRST_WRITES_BYTES, "A sandbox")
        slot = await self._take_slot()
        self._write(slot=slot.number)
        mark("slot")
        for attempt in range(1, _BOOT_ATTEMPTS + 1):
            try:
                await self._boot(wish, template, slot, mark)
                break
            except (_Died, VmmError, TimeoutError) as error:
                console = await self._console()
                await self._end_vm()
                log.warning("boot_failed", sandbox=self.sandbox, attempt=attempt, cause=repr(error), console=console)
                if attempt == _BOOT_ATTEMPTS:
                    end = f" The end of its console: {console[-1000:]}" if console else ""
                    raise BootFailed(f"The VM did not come up, twice; the worker's log says why.{end}") from error
        await self._host.link.admit(self.sandbox, slot.address)
        await self._host.probe(self.sandbox)
        mark("path")
        self._write(state="running", timings_ms=marks | {"total": marks["path"]})
        log.info("sandbox_started", sandbox=self.sandbox, **marks)
        self._settled.set()

    async def _take_slot(self) -> slots.Slot:
        try:
            return await self._host.pool.take()
        except CommandError as error:
            raise Unavailable("The host could not make a network slot; see the worker's log.") from error

    async def _boot(
        self, wish: StartSandbox, template: TemplateFiles, slot: slots.Slot, mark: Callable[[str], None]
    ) -> None:
        layout = self._host.layout
        vm_dir, memory = layout.vm_dir(self.sandbox), layout.memory_file(self.sandbox)
        disk = vm_dir / "disk"
        await rootfs.clone(template.rootfs, disk)
        await rootfs.make_memory_file(memory, wish.memory_mib)
        mark("disk")
        tap = slots.open_tap(slot)
        try:
            spec = BootSpec(
                sandbox=self.sandbox,
                vm_dir=vm_dir,
                disk=disk,
                memory=memory,
                kernel=template.kernel,
                initrd=template.initrd,
                uid=layout.vm_uid(self.entry.uid_number),
                vcpus=wish.vcpus,
                memory_mib=wish.memory_mib,
                tap_fd=tap,
            )
            self._vm = await self._host.driver.boot(spec)
        finally:
            os.close(tap)
        self._write(pid=self._vm.ref.pid, start_time=self._vm.ref.start_time)
        mark("vmm")
        init = AgentInit(
            sandbox_id=self.sandbox,
            hostname=self.sandbox,
            env=wish.env,
            access_token=wish.agent_token.get_secret_value(),
            time_unix_ns=time.time_ns(),
            entropy=base64.b64encode(secrets.token_bytes(64)).decode(),
        )
        async with asyncio.timeout(self._host.boot_deadline_s):
            await self._unless_dead(self._vm, initialise(netns.path(slot.netns), init))
        mark("agent")

    async def _unless_dead(self, vm: Vm, step: Coroutine[None, None, T]) -> T:
        """Run `step`; raise _Died as soon as the VMM ends."""

        async def raise_when_dead() -> T:
            raise _Died((await vm.wait()).reason)

        try:
            return await first(step, raise_when_dead())
        except AgentError as error:
            raise _Died(str(error)) from error

    async def _until_delete_asked(self) -> None:
        await self._delete_asked.wait()

    # -- watch ---------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Return when the sandbox is to be deleted, or has failed because its VMM ended."""
        vm = self._vm
        if vm is None:  # the wish to delete came while it was starting
            return

        async def until_dead() -> str | None:
            return (await vm.wait()).reason

        async def until_delete_asked() -> str | None:
            await self._delete_asked.wait()
            return None

        async def tend() -> str | None:
            status = VmStatus.RUNNING
            while (status := await vm.next_status(status)) is not VmStatus.GONE:
                await self._follow(vm, status)
            try:
                async with asyncio.timeout(_LAST_WORD_S):
                    return await until_dead()
            except TimeoutError:
                await vm.kill()
                return "the VMM stopped answering and was killed"

        reason = await first(until_dead(), until_delete_asked(), tend())
        if reason is not None:
            await self._fail(SandboxFailed(f"The VM ended: {reason}."))

    async def _follow(self, vm: Vm, status: VmStatus) -> None:
        """Report a VM whose disk writes fail on the host as paused, and continue it when there is room again."""
        if status not in (VmStatus.DISK_FULL, VmStatus.DISK_ERROR):
            return
        self._write(state="paused", reason=str(status))
        log.warning("sandbox_paused", sandbox=self.sandbox, reason=str(status))
        while vm.status is status:
            await asyncio.sleep(_ROOM_POLL_S)
            if area.has_room(self._host.layout):
                with contextlib.suppress(VmmError):
                    await vm.resume()
                    break
        self._write(state="running", reason=None)
        log.info("sandbox_resumed", sandbox=self.sandbox)

    # -- end -----------------------------------------------------------------------------------------------------------

    async def _fail(self, error: SpaceError) -> None:
        """Record the failure first, so that the API can say it at once, then give back what the VM held."""
        log.warning("sandbox_failed", sandbox=self.sandbox, reason=str(error))
        self._failure = error
        self._write(state="failed", reason=str(error))
        await self._end()
        self._settled.set()

    async def _finish(self) -> None:
        await self._delete_asked.wait()
        self._failure = self._failure or Conflict("The sandbox was deleted.", code="sandbox_deleted")
        self._write(state="deleting")
        await self._end()
        self._host.ledger.remove(self.sandbox)
        self._settled.set()
        self._gone.set()

    async def _end(self) -> None:
        await self._host.link.withdraw(self.sandbox)
        await self._end_vm()
        if self.entry.slot is not None:
            await slots.destroy(self._host.layout, self.entry.slot)
        await self._host.remove_remains(self.sandbox, self.entry.uid_number)

    async def _end_vm(self) -> None:
        if self._vm is not None:
            await self._vm.kill()

    async def _console(self) -> str:
        if self._vm is None:
            return ""
        with contextlib.suppress(VmmError):
            return await self._vm.console()
        return ""

    def _write(self, **changes: object) -> None:
        self.entry = self.entry.model_copy(update=changes)
        self._host.ledger.write(self.entry)
        self._changed(self.entry)
