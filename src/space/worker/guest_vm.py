"""One VM on this host and everything that exists for it: slot, uid, disk, memory, process, cgroup.

It knows nothing of whose VM it is: sandboxes, templates and the warm pool are built on it. What exists is told in its
record, which the owner keeps, and told before it can be lost. `end()` works from any half-done state, and twice.
"""

import base64
import contextlib
import dataclasses
import functools
import os
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from space.disk import copies, rootfs
from space.disk.frozen import Frozen
from space.guest import agent
from space.guest.line import Line, takes_connections
from space.host import netns
from space.host.command import CommandError
from space.host.patience import within
from space.host.process import boot_id
from space.host.tasks import first, together
from space.image.catalog import Bootable
from space.model.errors import InvalidArgument, StorageFull, Unavailable
from space.model.ids import SandboxId, new_id
from space.net import slot as slots
from space.telemetry import logger
from space.vmm.driver import BootSpec, Vm, VmmError
from space.wire.agent import AgentInit, AgentVolume, Reason
from space.worker.host import Host
from space.worker.records import VmRecord

log = logger()
T = TypeVar("T")
INIT_S = 30.0
"""Deadline for an agent that is known to be up, of the time that its VM can run. It takes some milliseconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Who a guest is to be. `token` is what the edge shows its agent, `template` what its user calls the template."""

    sandbox: str
    env: Mapping[str, str]
    token: str = dataclasses.field(repr=False)
    template: str = ""
    volumes: Sequence[AgentVolume] = ()
    """What it has mounted before any of its user's code runs."""

    service: bool = True
    """Whether the image's own service is started, where it boots."""


class Died(Exception):
    """The VM did not come to answer, or stopped; for our log. `console` is the end of its console."""

    def __init__(self, why: str, console: str = "") -> None:
        super().__init__(why)
        self.console = console


class GuestVm:
    """A VM to be, or one that is. `note` is called with each new record before what it tells of can be lost."""

    def __init__(self, host: Host, record: VmRecord, note: Callable[[VmRecord], None], vm: Vm | None = None) -> None:
        self._host, self.record, self._note = host, record, note
        self._vm = vm
        self._line: Line | None = None

    @classmethod
    def fresh(cls, host: Host, vcpus: int, memory_mib: int, note: Callable[[VmRecord], None]) -> "GuestVm":
        """Return one that holds nothing yet but a name and a uid of its own."""
        number = host.uids.take()
        record = VmRecord(vm=new_id(), uid_number=number, boot_id=boot_id(), vcpus=vcpus, memory_mib=memory_mib)
        return cls(host, record, note)

    @property
    def vm(self) -> Vm:
        """The running VM; only between a start and the end."""
        assert self._vm is not None
        return self._vm

    @property
    def started(self) -> bool:
        """Whether there is a VMM to speak of."""
        return self._vm is not None

    @property
    def disk(self) -> Path:
        """Its root filesystem, on the disk area."""
        return self._host.layout.vm_dir(self.record.vm) / "disk"

    @property
    def memory(self) -> Path:
        """Its memory, on the memory area."""
        return self._host.layout.memory_file(self.record.vm)

    @property
    def slot(self) -> slots.Slot:
        """Its slot; only once it was taken."""
        assert self.record.slot is not None
        return slots.describe(self._host.layout, self.record.slot)

    @property
    def line(self) -> Line:
        """The way to its agent, from its slot's network namespace."""
        if self._line is None:
            limit = functools.partial(within, pid=self.vm.ref.pid)
            self._line = Line(netns.path(self.slot.netns), limit)
        return self._line

    def hand_over(self, note: Callable[[VmRecord], None]) -> None:
        """Change the owner: from now on `note` is told."""
        self._note = note

    # -- start ---------------------------------------------------------------------------------------------------------

    async def boot(self, template: Bootable, disk: Path, identity: Identity) -> None:
        """Boot a kernel on a reflink of `disk` and wait until the agent has its identity. Raises Died, SpaceError."""
        await self._take_slot()
        await rootfs.clone(disk, self.disk)
        await rootfs.make_memory_file(self.memory, self.record.memory_mib)
        await self._run(template, None)
        await self.initialise(identity, "boot", self._host.boot_deadline_s)

    async def start(self, template: Bootable, source: Frozen) -> None:
        """Continue a frozen VM on reflinks of its disk and memory, without telling it yet who it is.

        Its user code stays stopped until `initialise`. Raises Died, SpaceError.
        """
        rootfs.make_folder(self.memory.parent)
        await together(
            self._take_slot(), rootfs.clone(source.disk, self.disk), copies.clone_memory(source, self.memory)
        )
        await self._run(template, source.state)

    async def _take_slot(self) -> None:
        if self.record.slot is not None:
            return
        try:
            slot = await self._host.pool.take()
        except CommandError as error:
            raise Unavailable("The host could not make a network slot; see the worker's log.") from error
        self._tell(slot=slot.number)

    async def _run(self, template: Bootable, state: Path | None) -> None:
        tap = slots.open_tap(self.slot)
        try:
            spec = BootSpec(
                sandbox=SandboxId(self.record.vm),
                vm_dir=self._host.layout.vm_dir(self.record.vm),
                disk=self.disk,
                memory=self.memory,
                kernel=template.kernel,
                initrd=template.initrd,
                uid=self._host.layout.vm_uid(self.record.uid_number),
                vcpus=self.record.vcpus,
                memory_mib=self.record.memory_mib,
                tap_fd=tap,
            )
            driver = self._host.driver
            self._vm = await (driver.boot(spec) if state is None else driver.restore(spec, state))
        except VmmError as error:
            raise Died(str(error)) from error
        finally:
            os.close(tap)
        self._tell(pid=self._vm.ref.pid, start_time=self._vm.ref.start_time)

    async def initialise(self, identity: Identity, reason: Reason, timeout_s: float = INIT_S) -> None:
        """Tell the agent who it is, the time, and fresh entropy; user code runs from then on. Raises Died.

        `timeout_s` leaves out what the VM stands in line for a processor.
        """
        init = AgentInit(
            sandbox_id=identity.sandbox,
            template_id=identity.template,
            hostname=identity.sandbox,
            env=dict(identity.env),
            access_token=identity.token,
            time_unix_ns=0,  # read anew for each attempt
            entropy=base64.b64encode(secrets.token_bytes(64)).decode(),
            ca_pem=self._host.root.pem,
            reason=reason,
            service=identity.service,
            volumes=list(identity.volumes),
        )
        try:
            async with self.line.limit(timeout_s):
                await self.unless_dead(self._mount(identity))
                await self.unless_dead(agent.initialise(self.line, init))
        except TimeoutError as error:
            raise Died(f"its agent gave no answer within {timeout_s:g} s", await self.console()) from error
        except (agent.AgentError, agent.AgentSilent) as error:
            raise Died(str(error), await self.console()) from error

    async def _mount(self, identity: Identity) -> None:
        try:
            await self._host.volumes.mount(self.record.vm, self.line, identity.volumes)
        except agent.AgentError as error:
            raise InvalidArgument(f"{error}.") from error

    async def is_reachable(self, patience_s: float) -> bool:
        """Tell whether its network carries; False after so long without an answer."""
        return await takes_connections(netns.path(self.slot.netns), self.line.limit(patience_s))

    async def cut_off(self) -> None:
        """End every connection that the outside has to it."""
        await slots.kill_sockets(self._host.layout, self.slot.address)

    async def unless_dead(self, step: Coroutine[None, None, T]) -> T:
        """Run `step`; raise Died as soon as the VMM ends."""

        async def raise_when_dead() -> T:
            ended = await self.vm.wait()
            raise Died(ended.reason, await self.vm.console())

        return await first(step, raise_when_dead())

    async def console(self) -> str:
        """Return the end of the guest's console; empty where there is none."""
        if self._vm is not None:
            with contextlib.suppress(VmmError):
                return await self._vm.console()
        return ""

    # -- freeze --------------------------------------------------------------------------------------------------------

    async def save(self, target: Frozen) -> None:
        """Write the device state of the paused VM to `target`. Raises StorageFull where it cannot be; the VM lives."""
        try:
            await self.vm.save(target.state)
        except VmmError as error:
            raise StorageFull("The state of the VM could not be written; see the worker's log.") from error

    async def copy_files(self, target: Frozen, *, memory: bool) -> None:
        """Reflink disk and memory of the paused VM to `target`; the VM goes on with its own."""
        copies = [rootfs.reflink(self.disk, target.disk)]
        if memory:
            copies.append(rootfs.reflink(self.memory, target.hot_memory))
        await together(*copies)

    def give_files(self, target: Frozen, *, memory: bool) -> None:
        """Move disk and memory of the ended VM to `target`; what was moved before a crash stays moved."""
        for ours, its in ((self.disk, target.disk), (self.memory, target.hot_memory)):
            if ours.exists() and (memory or ours == self.disk):
                os.chown(ours, 0, 0)
                ours.rename(its)

    # -- end -----------------------------------------------------------------------------------------------------------

    async def kill(self) -> None:
        """End the VMM; its files and slot stay. Twice is once."""
        self._hang_up()
        if self._vm is not None:
            await self._vm.kill()
        await self._host.volumes.let_go(self.record.vm)

    async def end(self) -> None:
        """Give everything back."""
        steps = [self.kill()]
        if self.record.slot is not None:
            steps.append(slots.destroy(self._host.layout, self.record.slot))
        await together(*steps)
        await self._host.remove_remains(SandboxId(self.record.vm), self.record.uid_number)
        self._vm = None

    def release(self) -> None:
        """Let go of the VMM and leave it running: the worker is about to stop."""
        self._hang_up()
        if self._vm is not None:
            self._vm.release()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()

    def _tell(self, **changes: object) -> None:
        self.record = self.record.model_copy(update=changes)
        self._note(self.record)
