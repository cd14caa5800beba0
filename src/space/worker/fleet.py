"""All machines of this host: admission by memory, fencing by epoch, adoption after a restart."""

import asyncio
import collections
import datetime as dt
from collections.abc import Coroutine

from space.host.process import boot_id
from space.image import catalog
from space.model.errors import NoCapacity, SandboxFailed, Stale, Unavailable
from space.model.ids import SandboxId, TemplateDigest
from space.telemetry import logger
from space.vmm.driver import VmmError
from space.wire.worker import GoneFact, SandboxFact, StartSandbox
from space.worker.facts import FactHub
from space.worker.host import Host
from space.worker.ledger import Entry
from space.worker.machine import Machine

log = logger()
OVERHEAD_MIB = 96
"""What a VMM needs beside its guest's memory: measured 55 MB under emulation (translated code included), rounded up."""
_TOMBSTONES = 10_000


class Fleet:
    """The machines by sandbox id. Each lives as one task of `group`."""

    def __init__(self, host: Host, group: asyncio.TaskGroup, memory_mib: int, worker_boot: str) -> None:
        self._host, self._group, self.memory_mib = host, group, memory_mib
        self._machines: dict[SandboxId, Machine] = {}
        self._buried: collections.OrderedDict[SandboxId, int] = collections.OrderedDict()
        self._lives: dict[asyncio.Task[None], Machine] = {}
        self._draining = False
        self.facts = FactHub(worker_boot, self.list, lambda: self.memory_free_mib)

    @property
    def memory_free_mib(self) -> int:
        """RAM that a new sandbox may still take, overhead included."""
        live = (m.entry.memory_mib + OVERHEAD_MIB for m in self._machines.values() if m.entry.state != "failed")
        return self.memory_mib - sum(live)

    def list(self) -> list[SandboxFact]:
        """Return what is true of every sandbox here."""
        return [machine.fact() for machine in self._machines.values()]

    async def start(self, sandbox: SandboxId, wish: StartSandbox) -> SandboxFact:
        """Make it run or join its start; returns when it runs.

        Raises Stale for an epoch that has been overtaken, NoCapacity at once where memory is short, NotFound for an
        unknown template, BootFailed and others for what went wrong. A failed sandbox is never started again.
        """
        machine = self._machines.get(sandbox)
        self._fence(sandbox, machine, wish.epoch)
        if machine is None:
            machine = self._admit(sandbox, wish)
        return await machine.settled()

    def _admit(self, sandbox: SandboxId, wish: StartSandbox) -> Machine:
        if self._draining:
            raise Unavailable("This worker is stopping. Try again.")
        template = catalog.find(self._host.layout, TemplateDigest(wish.template))
        if wish.memory_mib + OVERHEAD_MIB > self.memory_free_mib:
            raise NoCapacity(
                f"The host has {max(0, self.memory_free_mib - OVERHEAD_MIB)} MiB of memory left for sandboxes and this "
                f"one wants {wish.memory_mib}. Delete some, ask for less, or raise SPACE_MEMORY_GIB."
            )
        entry = Entry(
            sandbox=sandbox,
            epoch=wish.epoch,
            state="creating",
            template=wish.template,
            vcpus=wish.vcpus,
            memory_mib=wish.memory_mib,
            uid_number=self._host.ledger.next_uid_number(),
            boot_id=boot_id(),
            created_at=dt.datetime.now(dt.UTC),
        )
        self._host.ledger.write(entry)
        machine = Machine(self._host, entry, self._publish)
        self._machines[sandbox] = machine
        self._publish(entry)
        self._run(machine, machine.run(wish, template))
        return machine

    async def delete(self, sandbox: SandboxId, epoch: int) -> None:
        """End it and give everything back; fine when there is nothing. Raises Stale."""
        machine = self._machines.get(sandbox)
        self._fence(sandbox, machine, epoch)
        self._buried[sandbox] = epoch
        while len(self._buried) > _TOMBSTONES:
            self._buried.popitem(last=False)
        if machine is not None:
            await machine.delete()
            log.info("sandbox_deleted", sandbox=sandbox)

    def _fence(self, sandbox: SandboxId, machine: Machine | None, epoch: int) -> None:
        known = machine.entry.epoch if machine else self._buried.get(sandbox, -1)
        if epoch < known:
            raise Stale(f"Epoch {epoch} has been overtaken by {known}.")
        if machine is not None and epoch > known:
            machine.fence(epoch)

    async def adopt(self) -> None:
        """Take over what a former worker process left: VMs that run live on, half-done starts are undone.

        A start that was under way is undone, not continued: its environment and token were in the former process only.
        The control plane, which still wants the sandbox, asks for it again.
        """
        here = boot_id()
        for read in self._host.ledger.read():
            sandbox = SandboxId(read.sandbox)
            same_boot = read.boot_id == here
            void = {} if same_boot else {"slot": None, "pid": None, "start_time": None}  # of another boot of the host
            entry = read.model_copy(update=void)
            machine = Machine(self._host, entry, self._publish)
            if entry.state in ("creating", "deleting"):
                await machine.undo()
                log.info("sandbox_start_undone", sandbox=sandbox)
                continue
            self._machines[sandbox] = machine
            if entry.state == "failed":
                self._run(machine, machine.rest())
                continue
            try:
                vm = await self._host.driver.adopt(self._host.layout.vm_dir(sandbox), entry.vmm) if entry.vmm else None
                why = "its VMM ended while no worker was watching" if same_boot else "the host was restarted"
            except VmmError as error:  # it lives and does not answer: `mourn` kills it by its uid
                log.warning("adoption_failed", sandbox=sandbox, error=str(error))
                vm, why = None, "its VMM stopped answering"
            if vm is None:
                self._run(machine, machine.mourn(SandboxFailed(f"The VM is gone: {why}.")))
                continue
            log.info("sandbox_adopted", sandbox=sandbox, pid=vm.ref.pid)
            self._run(machine, machine.carry_on(vm))

    def slot_numbers(self) -> set[int]:
        """Return the slots that belong to a sandbox."""
        return {m.entry.slot for m in self._machines.values() if m.entry.slot is not None and m.entry.state != "failed"}

    def uids(self) -> set[int]:
        """Return the uids of the VMs here."""
        return {self._host.layout.vm_uid(m.entry.uid_number) for m in self._machines.values()}

    def sandboxes(self) -> set[SandboxId]:
        """Return the ids of the sandboxes here."""
        return set(self._machines)

    def drain(self) -> None:
        """Refuse new sandboxes and end the watches: the worker is about to stop."""
        self._draining = True
        self.facts.close()

    def let_go(self) -> None:
        """Stop looking after the machines and leave their VMs running; the next worker adopts them."""
        for task, machine in list(self._lives.items()):
            machine.release()
            task.cancel()

    def _publish(self, entry: Entry) -> None:
        machine = self._machines.get(SandboxId(entry.sandbox))
        if machine is not None:
            self.facts.publish(machine.fact())

    def _run(self, machine: Machine, life: Coroutine[None, None, None]) -> None:
        task = self._group.create_task(self._guard(machine, life))
        self._lives[task] = machine
        task.add_done_callback(lambda done: self._lives.pop(done, None))

    async def _guard(self, machine: Machine, life: Coroutine[None, None, None]) -> None:
        """Run one machine's life; an error in it is that sandbox's failure, never its neighbours'."""
        try:
            await life
        except Exception as error:
            log.exception("sandbox_task_failed", sandbox=machine.sandbox)
            await machine.mourn(
                SandboxFailed(f"The worker could not go on with it ({type(error).__name__}); see its log.")
            )
        self._machines.pop(machine.sandbox, None)
        self.facts.publish(GoneFact(id=machine.sandbox))
