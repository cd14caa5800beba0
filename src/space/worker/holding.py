"""What one sandbox holds on this host: its ledger entry and its VM. The entry is written before a change is made."""

from collections.abc import Callable

from space.disk import frozen as storage
from space.disk.frozen import Frozen
from space.model.errors import Conflict
from space.model.ids import SandboxId
from space.worker.guest_vm import GuestVm
from space.worker.host import Host
from space.worker.records import Entry, VmRecord
from space.worker.stock import Stock

_FLEETING = ("running", "paused")
"""States of a sandbox that ends with its VM, and so with the host."""


class Holding:
    """The entry and the VM of a sandbox. `changed` is told when something changed that others are to know."""

    def __init__(self, host: Host, stock: Stock, entry: Entry, changed: Callable[[Entry], None]) -> None:
        self.host, self.stock, self._changed = host, stock, changed
        self.entry = entry
        self._kept = entry
        self.guest: GuestVm | None = None

    @property
    def sandbox(self) -> SandboxId:
        """Whose it is."""
        return SandboxId(self.entry.sandbox)

    @property
    def paused(self) -> bool:
        """Whether it was paused by an order, not because a disk is full."""
        return self.entry.state == "paused" and self.entry.reason is None and self.guest is not None

    def stored(self, generation: int) -> Frozen:
        """Return where a suspension of it lies."""
        return Frozen(self.host.layout, f"s-{self.sandbox}-{generation}")

    def all_stored(self) -> dict[int, Frozen]:
        """Return its suspensions that are there, unfinished ones too, by generation.

        More than one where a worker was killed before the last was durable: then the one before was kept.
        """
        prefix = self.stored(0).name.removesuffix("0")
        ours = [name for name in storage.names(self.host.layout) if name.startswith(prefix)]
        return {int(name.removeprefix(prefix)): Frozen(self.host.layout, name) for name in sorted(ours)}

    def running_guest(self, verb: str) -> GuestVm:
        """Return its VM; raises Conflict unless it runs."""
        if self.entry.state != "running" or self.guest is None:
            raise self.not_now(verb)
        return self.guest

    def not_now(self, verb: str) -> Conflict:
        """Return the error for an order that its state does not allow."""
        why = f" ({self.entry.reason})" if self.entry.reason else ""
        return Conflict(f"A sandbox that is {self.entry.state}{why} cannot {verb}.", code=f"sandbox_{self.entry.state}")

    def new_guest(self) -> GuestVm:
        """Give it a VM to be."""
        guest = GuestVm.fresh(self.host, self.entry.vcpus, self.entry.memory_mib, self.note_vm)
        self.take_guest(guest)
        return guest

    def take_guest(self, guest: GuestVm) -> None:
        """Give it a VM that is there."""
        self.guest = guest
        guest.hand_over(self.note_vm)
        self.note_vm(guest.record)

    async def drop_guest(self) -> None:
        """End its VM and give back what was made for it, whatever state it is in; fine when there is none."""
        guest = self.guest
        if guest is None and self.entry.vm is not None:
            guest = GuestVm(self.host, self.entry.vm, self.note_vm)
        if guest is not None:
            await guest.end()
        self.guest = None
        if self.entry.vm is not None:
            self.write(vm=None)

    async def admit(self) -> None:
        """Let requests through."""
        assert self.guest is not None
        await self.host.link.admit(self.sandbox, self.entry.at(self.guest.slot.address))

    async def connect(self) -> None:
        """Let requests through, and see one arrive."""
        assert self.guest is not None
        await self.admit()
        await self.host.probe(self.sandbox, self.guest.line.limit)

    def fence(self, epoch: int) -> None:
        """Go by a newer epoch from now on; it is in the ledger with the next change, or `keep`."""
        self.entry = self.entry.model_copy(update={"epoch": epoch})

    def keep(self) -> None:
        """Have in the ledger what is known."""
        if self._kept is not self.entry:
            self.write()

    def note_vm(self, record: VmRecord) -> None:
        """Keep what is told of its VM."""
        self.write(vm=record)

    def write(self, *, synced: bool = False, **changes: object) -> None:
        """Change the entry, in the ledger first."""
        self.entry = self.entry.model_copy(update=changes)
        fleeting = self._kept.state in _FLEETING and self.entry.state in _FLEETING
        self.host.ledger.write(self.sandbox, self.entry, synced=synced, fleeting=fleeting)
        self._kept = self.entry
        if {"state", "reason", "generation", "durable", "egress"} & changes.keys():
            self._changed(self.entry)
