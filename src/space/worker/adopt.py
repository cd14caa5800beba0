"""What a new worker process makes of the one before: VMs live on, half-done steps are finished or undone.

running, paused   the VM is taken over; one that was stopped for a moment, for a copy of it, goes on
suspending        finished where the suspension was committed, else the VM goes on as it was
suspended         lies in storage; what was left of its VM goes
restoring         undone: suspended
creating          undone: the control plane, which has the environment and the token, asks again
deleting          finished
failed            rests until it is deleted
"""

import datetime as dt

from space.disk import frozen as storage
from space.disk.frozen import Frozen, Manifest
from space.model.errors import SandboxFailed, SnapshotDamaged, Unavailable
from space.telemetry import logger
from space.vmm.driver import VmmError, VmStatus
from space.worker.fleet import Fleet
from space.worker.guest_vm import Died, GuestVm
from space.worker.host import Host
from space.worker.machine import Machine
from space.worker.records import Entry, VmRecord
from space.worker.stock import Stock
from space.worker.stopping import go_on, mount_again, stop
from space.worker.storing import have_settled, leave_for_storage

log = logger()
_NOT_ADOPTED = "The worker could not take it over when it was started"
_GONE_WITH_HOST = "The VM is gone: the host went down."
_KEPT = "what it has in storage is kept until it is deleted. The worker's log says why."


async def adopt(host: Host, stock: Stock, fleet: Fleet) -> None:
    """Take over everything in the ledger. Called once, before the worker serves."""
    for entry in host.ledger.read():
        machine = fleet.adopt(entry)
        try:
            await _adopt(host, fleet, machine, entry)
        except Exception as error:  # whatever it is, it is this one's alone
            log.exception("adoption_failed", sandbox=entry.sandbox, state=entry.state)
            fleet.carry_on(machine, machine.mourn(SandboxFailed(f"{_NOT_ADOPTED} ({type(error).__name__}); {_KEPT}")))
            continue
        # that of one that runs too, so that its hot memory can give way
        generation = machine.entry.generation
        if not storage.is_gone(machine.holding.stored(generation)):
            have_settled(machine.holding, generation)
    for sandbox in host.ledger.damaged():
        _tell_of(host, fleet, sandbox)


async def _adopt(host: Host, fleet: Fleet, machine: Machine, entry: Entry) -> None:
    match entry.state:
        case "creating" | "deleting":
            await machine.forget()
            fleet.forget(machine)
            log.info("half_done_step_undone", sandbox=entry.sandbox, state=entry.state)
        case "failed" | "suspended":
            await machine.holding.drop_guest()
            fleet.carry_on(machine, machine.carry_on())
        case "restoring":
            await machine.holding.drop_guest()
            machine.holding.write(state="suspended")
            fleet.carry_on(machine, machine.carry_on())
        case _:
            await _take_over(host, fleet, machine, entry)


def _tell_of(host: Host, fleet: Fleet, sandbox: str) -> None:
    """Have a sandbox whose record was set aside shown as failed; what it has in storage stays until it is deleted."""
    gone = host.ledger.went_with_the_host(sandbox)
    entry = Entry(
        sandbox=sandbox,
        epoch=0,
        state="failed",
        reason=_GONE_WITH_HOST if gone else f"The worker's record of it is damaged; {_KEPT}",
        template="",
        vcpus=1,
        memory_mib=1,
        created_at=dt.datetime.now(dt.UTC),
    )
    machine = fleet.adopt(entry)
    machine.holding.write(generation=max(machine.holding.all_stored(), default=0))
    fleet.carry_on(machine, machine.carry_on())


async def _take_over(host: Host, fleet: Fleet, machine: Machine, entry: Entry) -> None:
    guest, why = await _find(host, entry.vm)
    committed = _committed(machine.holding.stored(entry.generation + 1)) if entry.state == "suspending" else None
    if committed is not None and entry.vm is not None:
        guest = guest or GuestVm(host, entry.vm.on_this_boot(), machine.holding.note_vm)
        await leave_for_storage(machine.holding, guest, entry.generation + 1, memory=committed.with_memory)
        fleet.carry_on(machine, machine.carry_on())
        return
    if guest is None:
        fleet.carry_on(machine, machine.mourn(SandboxFailed(f"The VM is gone: {why}.")))
        return
    machine.holding.take_guest(guest)
    log.info("sandbox_adopted", sandbox=entry.sandbox, pid=guest.vm.ref.pid)
    fleet.carry_on(machine, _as_it_was(machine, guest))


def _committed(suspension: Frozen) -> Manifest | None:
    try:
        return storage.read(suspension)
    except SnapshotDamaged:
        return None


async def _as_it_was(machine: Machine, guest: GuestVm) -> None:
    """Bring a VM from wherever a step was cut off to what its entry says, and live on.

    For a suspension or a copy it may be stopped, and its user code too; or it may run although it is paused.
    """
    holding = machine.holding
    try:
        if holding.paused:
            if guest.vm.status is VmStatus.RUNNING:
                await stop(holding, guest)
        elif holding.entry.state != "paused":  # else its disk is full, and it goes on when there is room
            await go_on(holding, guest, "pause")
            await mount_again(holding, guest)
            if holding.entry.state == "suspending":
                holding.write(state="running", reason=None)
    except (Died, Unavailable) as error:
        log.warning("half_done_step_not_undone", sandbox=holding.sandbox, error=str(error))
        holding.write(state="running", reason=None)
    await machine.carry_on()


async def _find(host: Host, record: VmRecord | None) -> tuple[GuestVm | None, str]:
    """Return the VM of a record, held again; or why there is none."""
    if record is None:
        return None, "it had none"
    here = record.on_this_boot()
    if here.vmm is None:
        return None, "the host was restarted"
    try:
        vm = await host.driver.adopt(host.layout.vm_dir(here.vm), here.vmm)
    except VmmError as error:  # it lives and does not answer: ending the sandbox kills it by its uid
        log.warning("adoption_failed", vm=here.vm, error=str(error))
        return None, "its VMM stopped answering"
    if vm is None:
        return None, "its VMM ended while no worker was watching"
    return GuestVm(host, here, lambda _: None, vm), ""
