"""Puts the parts of a worker together, and brings them to where the former worker process left the host."""

import asyncio
import dataclasses
from collections.abc import Coroutine

from space.disk import frozen as storage
from space.disk.frozen import Frozen
from space.image import catalog
from space.image.oci import Registries
from space.model.errors import SnapshotDamaged
from space.settings import WorkerSettings
from space.worker.admission import Admission
from space.worker.adopt import adopt
from space.worker.builder import Builder
from space.worker.event_relay import EventRelay
from space.worker.fleet import Fleet, Machines
from space.worker.host import Host
from space.worker.janitor import sweep
from space.worker.ledger import Ledger
from space.worker.records import Entry, Spare, VmRecord
from space.worker.settler import Settler
from space.worker.shelf import Shape, Shelf
from space.worker.shelf_check import watch_over
from space.worker.stock import Stock
from space.worker.volumes import end_servers
from space.worker.warm_pool import WarmPool


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """The parts that the HTTP API and `main` need."""

    host: Host
    stock: Stock
    admission: Admission
    fleet: Fleet
    relay: EventRelay
    builder: Builder

    def loops(self) -> list[Coroutine[None, None, None]]:
        """Return what has to run beside the API."""
        return [
            self.host.link.run(self.fleet.note_name, self.fleet.note_rotation),
            self.host.pool.run(),
            self.stock.settler.run(),
            self.stock.shelf.run(),
            watch_over(self.host.layout),
            self.stock.spares.run(),
            self.host.volumes.run(),
        ]

    def drain(self) -> None:
        """Refuse new sandboxes and end all streams: the worker is about to stop."""
        self.fleet.drain()
        self.relay.close()

    def let_go(self) -> None:
        """Stop looking after VMs and leave them running."""
        self.fleet.let_go()
        self.stock.spares.release()


async def assemble(host: Host, settings: WorkerSettings, group: asyncio.TaskGroup, worker_boot: str) -> Worker:
    """Return a worker that has adopted everything and swept away what nobody owns; not yet serving."""
    machines: Machines = {}

    def entries() -> list[Entry]:
        return [machine.entry for machine in machines.values()]

    def starting() -> bool:
        return any(entry.state in ("creating", "restoring", "suspending") for entry in entries())

    def room(memory_mib: int) -> bool:
        return admission.fits(memory_mib)

    shelf = Shelf(host)
    ledger = Ledger(host.layout.spares_dir, Spare)
    ledger.open()
    spares = WarmPool(host, shelf, ledger, settings.warm_pool, room=room, busy=starting)
    admission = Admission(
        host.layout, settings.memory_mib, entries=entries, spares=spares.records, evict=spares.give_back
    )
    stock = Stock(shelf, spares, Settler())
    fleet = Fleet(host, stock, admission, machines, group, worker_boot)
    await end_servers(host.layout)
    await adopt(host, stock, fleet)
    await spares.adopt()
    await sweep(host.layout, _records(fleet, spares), keep_frozen=_owned(host, fleet))
    builder = Builder(host, stock, admission, settings.code_dir, Registries.of(settings.registries))
    return Worker(host, stock, admission, fleet, EventRelay(host.link.client), builder)


def _records(fleet: Fleet, spares: WarmPool) -> list[VmRecord]:
    return [*(entry.vm for entry in fleet.entries() if entry.vm is not None), *spares.records()]


def _owned(host: Host, fleet: Fleet) -> set[str]:
    """Return the names of the frozen VMs that a sandbox or a template owns; a template's only once it is whole."""
    suspended = {
        f"s-{entry.sandbox}-{generation}"
        for entry in fleet.entries()
        for generation in (entry.generation, entry.generation - 1)
    }
    templates = tuple(Shape(template.digest, 0, 0).prefix for template in catalog.templates(host.layout))
    found = storage.names(host.layout)
    return {name for name in found if name in suspended or (name.startswith(templates) and _whole(host, name))}


def _whole(host: Host, name: str) -> bool:
    try:
        manifest = storage.read(Frozen(host.layout, name))
    except SnapshotDamaged:
        return False
    return manifest is not None and manifest.digests is not None
