"""Templates with their memory: one frozen VM for each template and size, from which sandboxes are cloned.

The first is made when the template is built; other sizes when one was asked for. A template that was itself made from a
sandbox's memory has exactly its own.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import os
import time

from space.disk import frozen as storage
from space.disk.frozen import Frozen, Manifest
from space.disk.settlement import settle
from space.guest import agent
from space.guest.agent import AgentError, AgentSilent
from space.image import catalog
from space.image.catalog import TemplateFiles
from space.layout import Layout
from space.model.errors import BuildFailed, SpaceError
from space.model.ids import TemplateDigest, new_id
from space.model.sandbox import DEFAULT_MEMORY_MIB, DEFAULT_VCPUS
from space.telemetry import logger
from space.vmm.driver import VmmError
from space.wire.agent import FreezeWish
from space.worker.guest_vm import Died, GuestVm, Identity
from space.worker.host import Host
from space.worker.records import VmRecord

log = logger()
_AGENT_S = 30.0
READY_S = 900.0
"""How long a template's own check (`/etc/space/hooks/ready`) may take to succeed, unless its build says otherwise.

The code interpreter has a kernel import what it needs first: seconds, but minutes where the CPU is emulated and shared.
"""
_WARM_UPS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """A template at a size."""

    template: str
    vcpus: int
    memory_mib: int

    @property
    def prefix(self) -> str:
        """What the names of this template's frozen VMs begin with, whatever their size."""
        return f"t-{self.template.removeprefix('sha256:')}-"

    @property
    def name(self) -> str:
        """The name of its frozen VM."""
        return f"{self.prefix}{self.vcpus}-{self.memory_mib}"

    def frozen(self, layout: Layout) -> Frozen:
        """Return where it lies, whether there is one or not."""
        return Frozen(layout, self.name)


def default_shape(template: str) -> Shape:
    """Return a template at the size that a create has where it asks for none."""
    return Shape(template, DEFAULT_VCPUS, DEFAULT_MEMORY_MIB)


class Shelf:
    """The frozen templates of this host, and the loop that makes those that are wanted."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._wanted: asyncio.Queue[Shape] = asyncio.Queue()
        self._lock = asyncio.Lock()
        self._keeps_state: dict[str, bool] = {}

    def find(self, template: str, vcpus: int, memory_mib: int) -> Frozen | None:
        """Return the frozen VM of a template at a size, where there is one that this host can take up; it is in use."""
        frozen = Shape(template, vcpus, memory_mib).frozen(self._host.layout)
        try:
            manifest = storage.read(frozen)
        except SpaceError as error:
            log.warning("template_snapshot_damaged", snapshot=frozen.name, error=str(error))
            return None
        whole = manifest is not None and manifest.digests is not None and frozen.digests_file.exists()
        fits = whole and manifest is not None and manifest.vmm == self._host.vmm
        if not fits or not (frozen.hot_memory.exists() or frozen.stored_memory.exists()):
            return None
        with contextlib.suppress(FileNotFoundError):  # its memory was given up: a clone begins with a copy
            os.utime(frozen.hot_memory, (time.time(), frozen.hot_memory.stat().st_mtime))
        return frozen

    def keeps_state(self, template: str) -> bool:
        """Tell whether a template holds a sandbox's memory, so that booting its disk would not be the same."""
        if template not in self._keeps_state:
            found = catalog.find(self._host.layout, TemplateDigest(template))
            self._keeps_state[template] = found.template.memory
        return self._keeps_state[template]

    async def remove(self, template: TemplateDigest) -> None:
        """Remove the frozen VMs of a template, of every size."""
        prefix = Shape(template, 0, 0).prefix
        for name in storage.names(self._host.layout):
            if name.startswith(prefix):
                await asyncio.to_thread(storage.discard, Frozen(self._host.layout, name))

    def wanted(self, template: str, vcpus: int, memory_mib: int) -> None:
        """Note that this size was asked for and had to be booted."""
        self._wanted.put_nowait(Shape(template, vcpus, memory_mib))

    async def run(self) -> None:
        """Make what is wanted, one at a time, for ever."""
        while True:
            shape = await self._wanted.get()
            try:
                await self.make(shape.template, shape.vcpus, shape.memory_mib)
            except (SpaceError, OSError) as error:  # the template may have been deleted meanwhile, its files with it
                log.warning("template_snapshot_failed", snapshot=shape.name, error=str(error))

    async def make(
        self,
        template: str,
        vcpus: int = DEFAULT_VCPUS,
        memory_mib: int = DEFAULT_MEMORY_MIB,
        *,
        ready_s: float = READY_S,
    ) -> Frozen:
        """Boot a template, warm it, freeze it, read it back, publish it; returns at once where that was done before.

        `ready_s`: how long its own check may take. Raises BuildFailed where the template does not come up, and what
        starting a VM raises.
        """
        async with self._lock:
            found = self.find(template, vcpus, memory_mib)
            if found is not None:
                return found
            files = catalog.find(self._host.layout, TemplateDigest(template))
            shape = Shape(template, vcpus, memory_mib)
            target = shape.frozen(self._host.layout)
            guest = GuestVm.fresh(self._host, vcpus, memory_mib, _unrecorded)
            try:
                await self._freeze(guest, files, target, shape, ready_s)
                await settle(target)
                catalog.find(self._host.layout, TemplateDigest(template))  # else nobody would ever remove it
            except (Died, VmmError, AgentError, AgentSilent) as error:
                await asyncio.to_thread(storage.discard, target)
                raise BuildFailed(f"The template did not come up: {error}") from error
            except BaseException:
                await asyncio.to_thread(storage.discard, target)
                raise
            finally:
                await guest.end()
            log.info("template_snapshot_made", snapshot=target.name)
            return target

    async def _freeze(self, guest: GuestVm, files: TemplateFiles, target: Frozen, shape: Shape, ready_s: float) -> None:
        await asyncio.to_thread(storage.begin, target)
        await guest.boot(files, files.rootfs, Identity(new_id(), {}, new_id()))
        await guest.unless_dead(agent.ready(guest.line, ready_s))
        for _ in range(_WARM_UPS):
            await agent.warm(guest.line, _AGENT_S)
        await agent.freeze(guest.line, FreezeWish(reason="snapshot", hook_timeout_s=0, sync=True), _AGENT_S)
        await guest.vm.pause()
        await guest.save(target)
        manifest = Manifest(
            name=target.name,
            generation=0,
            template=shape.template,
            vcpus=shape.vcpus,
            memory_mib=shape.memory_mib,
            vmm=self._host.vmm,
            with_memory=True,
            frozen_at=dt.datetime.now(dt.UTC),
        )
        await guest.kill()
        guest.give_files(target, memory=True)
        storage.commit(target, manifest)


def _unrecorded(_: VmRecord) -> None:
    """A VM that ends with the attempt needs no record: what a killed worker leaves of it, nobody owns."""
