"""All machines of this host: fencing by epoch, admission, and the orders that concern more than one."""

import asyncio
import collections
import datetime as dt
from collections.abc import Coroutine

from space.disk import frozen as storage
from space.disk.frozen import Frozen
from space.image import catalog
from space.model.errors import NotFound, SandboxFailed, SpaceError, Stale, Unavailable
from space.model.ids import SandboxId, TemplateDigest, new_id
from space.model.rotation import Rotation
from space.model.template import Template
from space.telemetry import logger
from space.wire.agent import AgentVolume
from space.wire.gateway import EgressOrder, SecretsOrder
from space.wire.worker import (
    Activity,
    AnyFact,
    ForkChild,
    ForkResult,
    ForkSandbox,
    GoneFact,
    RotatedFact,
    SandboxFact,
    SnapshotSandbox,
    StartSandbox,
    SuspendSandbox,
    Usage,
)
from space.worker import snapshots
from space.worker.admission import Admission
from space.worker.facts import FactHub
from space.worker.guest_vm import Identity
from space.worker.host import Host
from space.worker.machine import Machine
from space.worker.records import Entry
from space.worker.stock import Stock

log = logger()
_TOMBSTONES = 10_000
Machines = dict[SandboxId, Machine]


class Fleet:
    """Looks after `machines`, by sandbox id; only it changes them. Each lives as one task of `group`."""

    def __init__(
        self,
        host: Host,
        stock: Stock,
        admission: Admission,
        machines: Machines,
        group: asyncio.TaskGroup,
        worker_boot: str,
    ) -> None:
        self._host, self._stock, self._admission, self._group = host, stock, admission, group
        self._machines = machines
        self._buried: collections.OrderedDict[SandboxId, int] = collections.OrderedDict()
        self._lives: dict[asyncio.Task[None], Machine] = {}
        self._draining = False
        self.facts = FactHub(worker_boot, self._all_told, lambda: self._admission.free_mib)

    def told(self) -> list[SandboxFact]:
        """Return what is true of every sandbox here."""
        return [machine.fact() for machine in self._machines.values()]

    def _all_told(self) -> list[AnyFact]:
        rotations = self._host.link.rotations.unstored()
        return [*self.told(), *(RotatedFact.of(rotation) for rotation in rotations)]

    def note_rotation(self, rotation: Rotation) -> None:
        """Tell the control plane of a secret that its provider has rotated."""
        self.facts.publish(RotatedFact.of(rotation))

    def entries(self) -> list[Entry]:
        """Return the ledger's entry of every sandbox here."""
        return [machine.entry for machine in self._machines.values()]

    async def start(self, sandbox: SandboxId, wish: StartSandbox) -> SandboxFact:
        """Make it run or join its start; returns when it runs.

        Raises Stale for an epoch that has been overtaken, NoCapacity at once where memory is short, NotFound for an
        unknown template, BootFailed and others for what went wrong. A failed sandbox is never started again.
        """
        machine = self._machines.get(sandbox)
        self._fence(sandbox, machine, wish.epoch)
        if machine is None:
            identity = _identity(sandbox, wish)
            entry = _newborn(
                sandbox,
                wish.epoch,
                wish.template,
                wish.vcpus,
                wish.memory_mib,
                egress=wish.egress,
                volumes=wish.volumes,
            )
            if wish.secrets is not None:
                await self._host.link.put_secrets(sandbox, wish.secrets)
            machine = await self._admit(identity, entry, None)
        return await machine.settled()

    async def _admit(self, identity: Identity, entry: Entry, source: Frozen | None) -> Machine:
        if self._draining:
            raise Unavailable("This worker is stopping. Try again.")
        files = catalog.find(self._host.layout, TemplateDigest(entry.template))
        sandbox = SandboxId(entry.sandbox)
        machine = Machine(self._host, self._stock, entry, self._publish)
        self._machines[sandbox] = machine  # counted from here on, so that no other takes the same memory
        try:
            await self._admission.check(entry.memory_mib)
        except SpaceError:
            del self._machines[sandbox]
            raise
        self._host.ledger.write(sandbox, entry)
        self._publish(entry)
        self._run(machine, machine.run(identity, files, source))
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

    async def pause(self, sandbox: SandboxId, epoch: int) -> SandboxFact:
        """Stop its vCPUs."""
        return await self._there(sandbox, epoch).pause()

    async def resume(self, sandbox: SandboxId, epoch: int) -> SandboxFact:
        """Let its vCPUs run again."""
        return await self._there(sandbox, epoch).resume()

    async def suspend(self, sandbox: SandboxId, wish: SuspendSandbox) -> SandboxFact:
        """Put it to storage."""
        return await self._there(sandbox, wish.epoch).suspend(memory=wish.memory)

    async def restore(self, sandbox: SandboxId, wish: StartSandbox) -> SandboxFact:
        """Bring it back; raises NoCapacity where memory is short, and leaves it suspended."""
        machine = self._there(sandbox, wish.epoch)
        files = catalog.find(self._host.layout, TemplateDigest(wish.template))
        if wish.secrets is not None and wish.secrets.generation > self._host.link.secrets_generation(sandbox):
            await self._host.link.put_secrets(sandbox, wish.secrets)
        with self._admission.pledged(sandbox):
            if machine.entry.state == "suspended":
                await self._admission.check(machine.entry.memory_mib)
            return await machine.restore(_identity(sandbox, wish), files, wish.egress)

    async def put_egress(self, sandbox: SandboxId, order: EgressOrder) -> None:
        """Let this leave a sandbox from now on, whatever state it is in."""
        await self._known(sandbox).put_egress(order)

    async def put_secrets(self, sandbox: SandboxId, order: SecretsOrder) -> None:
        """Use these values for a sandbox from its next request on."""
        machine = self._known(sandbox)
        await self._host.link.put_secrets(sandbox, order)
        self._publish(machine.entry)

    def note_name(self, sandbox: SandboxId, address: str, name: str) -> None:
        """Record that a sandbox's guest is given an address for a name; fine for one that has just gone."""
        machine = self._machines.get(sandbox)
        if machine is not None:
            machine.note_name(address, name)

    async def activity(self, sandbox: SandboxId) -> Activity:
        """Ask a running sandbox's agent what is going on."""
        return await self._known(sandbox).activity()

    async def usage(self, sandbox: SandboxId) -> Usage:
        """Return what a sandbox used lately, and now if it runs."""
        return Usage(samples=await self._known(sandbox).usage())

    async def fork(self, sandbox: SandboxId, wish: ForkSandbox) -> list[ForkResult]:
        """Start copies of a running or suspended sandbox, all of the same moment; one result per child."""
        parent = self._there(sandbox, wish.epoch)
        copy = Frozen(self._host.layout, f"f-{new_id()}")
        await parent.copy_to(copy, "fork", memory=True)
        try:
            async with asyncio.TaskGroup() as group:
                births = [group.create_task(self._bear(parent.entry, copy, child)) for child in wish.children]
        finally:
            await asyncio.to_thread(storage.discard, copy)
        return [birth.result() for birth in births]

    async def _bear(self, parent: Entry, copy: Frozen, child: ForkChild) -> ForkResult:
        sandbox = SandboxId(child.id)
        identity = _identity(sandbox, child)
        try:
            machine = self._machines.get(sandbox)
            self._fence(sandbox, machine, child.epoch)
            if machine is None:
                entry = _newborn(
                    sandbox,
                    child.epoch,
                    parent.template,
                    parent.vcpus,
                    parent.memory_mib,
                    egress=child.egress,
                    volumes=child.volumes,
                )
                # its guest remembers the names that the parent's was given; no binding or secret goes over
                machine = await self._admit(identity, entry.model_copy(update={"names": parent.names}), copy)
            return ForkResult(id=child.id, fact=await machine.settled())
        except SpaceError as error:
            if (left := self._machines.get(sandbox)) is not None:
                await left.delete()
            return ForkResult(id=child.id, code=error.slug, detail=str(error))

    async def snapshot(self, sandbox: SandboxId, wish: SnapshotSandbox) -> Template:
        """Freeze a copy as a template; the sandbox goes on before that is on disk."""
        machine = self._there(sandbox, wish.epoch)
        copy = Frozen(self._host.layout, f"f-{new_id()}")
        await machine.copy_to(copy, "snapshot", memory=wish.memory)
        try:
            return await snapshots.publish(self._host.layout, copy, machine.entry, wish.name)
        finally:
            await asyncio.to_thread(storage.discard, copy)

    def adopt(self, entry: Entry) -> Machine:
        """Return a machine for a sandbox of a former worker process; `carry_on` or `mourn` is to be given it."""
        machine = Machine(self._host, self._stock, entry, self._publish)
        self._machines[machine.sandbox] = machine
        return machine

    def forget(self, machine: Machine) -> None:
        """Drop an adopted machine of which nothing is left."""
        self._machines.pop(machine.sandbox, None)

    def carry_on(self, machine: Machine, life: Coroutine[None, None, None]) -> None:
        """Let an adopted machine live."""
        self._run(machine, life)

    def drain(self) -> None:
        """Refuse new sandboxes and end the watches: the worker is about to stop."""
        self._draining = True
        self.facts.close()

    def let_go(self) -> None:
        """Stop looking after the machines and leave their VMs running; the next worker adopts them."""
        for task, machine in list(self._lives.items()):
            machine.release()
            task.cancel()

    def _there(self, sandbox: SandboxId, epoch: int) -> Machine:
        machine = self._machines.get(sandbox)
        self._fence(sandbox, machine, epoch)
        if machine is None:
            raise NotFound(f"This worker has no sandbox {sandbox}.")
        return machine

    def _known(self, sandbox: SandboxId) -> Machine:
        machine = self._machines.get(sandbox)
        if machine is None:
            raise NotFound(f"This worker has no sandbox {sandbox}.")
        return machine

    def _fence(self, sandbox: SandboxId, machine: Machine | None, epoch: int) -> None:
        known = machine.entry.epoch if machine else self._buried.get(sandbox, -1)
        if epoch < known:
            raise Stale(f"Epoch {epoch} has been overtaken by {known}.")
        if machine is not None and epoch > known:
            machine.fence(epoch)

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
            await self._mourn(
                machine, SandboxFailed(f"The worker could not go on with it ({type(error).__name__}); see its log.")
            )
        self._machines.pop(machine.sandbox, None)
        self.facts.publish(GoneFact(id=machine.sandbox))

    async def _mourn(self, machine: Machine, error: SandboxFailed) -> None:
        """Let it live on as failed; where not even that can be done, the next start of the worker tries again."""
        try:
            await machine.mourn(error)
        except Exception:
            log.exception("sandbox_given_up", sandbox=machine.sandbox)
            machine.give_up(error)


def _identity(sandbox: SandboxId, wish: StartSandbox | ForkChild) -> Identity:
    token = wish.agent_token.get_secret_value()
    return Identity(sandbox, wish.env, token, wish.template_name, tuple(wish.volumes))


def _newborn(
    sandbox: SandboxId,
    epoch: int,
    template: str,
    vcpus: int,
    memory_mib: int,
    *,
    egress: EgressOrder | None,
    volumes: list[AgentVolume],
) -> Entry:
    return Entry(
        sandbox=sandbox,
        epoch=epoch,
        state="creating",
        template=template,
        vcpus=vcpus,
        memory_mib=memory_mib,
        egress=egress,
        volumes=volumes,
        created_at=dt.datetime.now(dt.UTC),
    )
