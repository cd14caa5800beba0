"""A sandbox goes to storage and comes back; copies of it are made.

A suspension exists once its manifest is committed. Before that a failure leaves the sandbox running as it was, after
that it is suspended, whatever happens. A restore that fails leaves it suspended and its files as they were.
"""

import asyncio
import datetime as dt
import functools
import time
from collections.abc import Awaitable

from space.disk import copies
from space.disk import frozen as storage
from space.disk.frozen import Frozen, Manifest
from space.disk.verification import fall_back, verify
from space.host.command import CommandError
from space.image.catalog import TemplateFiles
from space.model.errors import (
    BootFailed,
    Conflict,
    SnapshotDamaged,
    SnapshotUnfit,
    SpaceError,
    StorageFull,
    Unavailable,
)
from space.telemetry import logger
from space.wire.agent import FreezeReason, FreezeWish
from space.worker.guest_vm import Died, GuestVm, Identity
from space.worker.holding import Holding
from space.worker.shelf import Shape
from space.worker.starting import boot
from space.worker.stopping import freeze, go_on, resume, run_vcpus, stop_vcpus

log = logger()
_HOOK_S = 10.0


async def suspend(h: Holding, *, memory: bool) -> None:
    """Put it to storage; `memory` False keeps the disk only. One that is suspended stays as it is.

    Raises Conflict, and what kept it from being stored: then it goes on as before. Raises Died.
    """
    if h.entry.state == "suspended":
        return
    paused = h.paused
    guest = h.guest if paused and h.guest else h.running_guest("suspend")
    before = h.entry.state
    generation = h.entry.generation + 1
    target = h.stored(generation)
    h.write(state="suspending")
    try:
        await asyncio.to_thread(storage.begin, target)
        await _stop(h, guest, "suspend", paused=paused, memory=memory)
        try:
            if memory:
                await guest.save(target)
            storage.commit(target, _manifest(h, target, generation, memory=memory))
        except BaseException:
            if not paused:
                await go_on(h, guest, "suspend")
            raise
    except (SpaceError, OSError) as error:
        await asyncio.to_thread(storage.discard, target)
        if paused:
            await stop_vcpus(guest)
        h.write(state=before)
        if isinstance(error, SpaceError):
            raise
        raise StorageFull(f"The sandbox could not be stored: {error.strerror}. It goes on.") from error
    await leave_for_storage(h, guest, generation, memory=memory)


async def _stop(h: Holding, guest: GuestVm, reason: FreezeReason, *, paused: bool, memory: bool) -> None:
    """Bring it to a stop; for its disk alone, one that the guest itself has made consistent."""
    if paused and memory:
        return
    if paused:
        await _make_disk_consistent(h, guest, reason)
    else:
        wish = FreezeWish(reason=reason, hook_timeout_s=_HOOK_S, sync=not memory, fsfreeze=not memory)
        await freeze(h, guest, wish)
    await stop_vcpus(guest)


async def _make_disk_consistent(h: Holding, guest: GuestVm, reason: FreezeReason) -> None:
    """Let the vCPUs of a paused sandbox run, and not its user code. Raises Conflict, with all stopped, and Died.

    That it did not work is no reason to try again by itself: a guest that brings it about would run most of the time.
    """
    await run_vcpus(guest)
    try:
        wish = FreezeWish(reason=reason, hook_timeout_s=0, sync=True, fsfreeze=True)
        await freeze(h, guest, wish, resting=True)
    except Unavailable as error:
        await stop_vcpus(guest)
        raise Conflict(
            "The guest of the paused sandbox did not bring its disk to rest; it stays paused. Take its memory too, or "
            "resume it first.",
            code="disk_not_at_rest",
        ) from error


async def leave_for_storage(h: Holding, guest: GuestVm, generation: int, *, memory: bool) -> None:
    """Go over to a committed suspension: the VM ends, its files become the stored ones. Works twice.

    It is suspended as soon as its process has ended, before its place in the network is taken apart. The record of that
    is synced with the suspension itself, when it has settled.
    """
    await h.host.link.withdraw(h.sandbox)
    await guest.kill()
    guest.give_files(h.stored(generation), memory=memory)
    h.guest = None
    h.write(state="suspended", reason=None, generation=generation, durable=False)
    log.info("sandbox_suspended", sandbox=h.sandbox, generation=generation, memory=memory)
    have_settled(h, generation)
    try:
        await guest.end()
    except (CommandError, OSError) as error:  # the next start of the worker tries again
        log.warning("vm_not_cleared_away", sandbox=h.sandbox, vm=guest.record.vm, error=str(error))
    else:
        h.write(vm=None)


def have_settled(h: Holding, generation: int) -> None:
    """Have a committed suspension made durable, in the background."""
    bases = (h.stored(generation - 1), Shape(h.entry.template, h.entry.vcpus, h.entry.memory_mib).frozen(h.host.layout))
    h.stock.settler.add(h.stored(generation), bases, functools.partial(_note_settled, h, generation))


def _note_settled(h: Holding, generation: int) -> None:
    """Record that a suspension would survive a loss of power; those before are no longer needed."""
    if h.entry.state == "suspended" and h.entry.generation == generation:
        h.write(durable=True, synced=True)
    for older, frozen in h.all_stored().items():
        if older < generation:
            storage.discard(frozen)


async def restore(h: Holding, identity: Identity, template: TemplateFiles) -> None:
    """Bring it back as it was; a running one runs. Raises what kept it from that: then it is suspended as before."""
    if h.entry.state == "running":
        return
    if h.entry.state == "paused":
        await resume(h)
        return
    if h.entry.state != "suspended":
        raise h.not_now("restore")
    began = time.monotonic()
    source = h.stored(h.entry.generation)
    h.write(state="restoring")
    try:
        manifest = storage.read(source)
        if manifest is None:
            raise SnapshotDamaged(f"The manifest of snapshot {source.name} is missing; nothing was started.")
        try:
            await _bring_back(h, identity, template, source, manifest)
        except SnapshotDamaged:
            if not await fall_back(source, manifest):
                raise
            log.warning("memory_taken_from_storage", sandbox=h.sandbox, snapshot=source.name)
            await h.drop_guest()
            await _bring_back(h, identity, template, source, manifest)
        await h.connect()
    except (Died, SpaceError) as error:
        await h.drop_guest()
        h.write(state="suspended")
        if isinstance(error, SpaceError):
            raise
        log.warning("restore_failed", sandbox=h.sandbox, cause=str(error), console=error.console)
        raise BootFailed("The sandbox did not come back; it stays suspended. Try again.") from error
    total_ms = round(1e3 * (time.monotonic() - began), 1)
    h.write(state="running", reason=None, timings_ms=h.entry.timings_ms | {"restore": total_ms})
    log.info("sandbox_restored", sandbox=h.sandbox, generation=manifest.generation, total_ms=total_ms)


async def _bring_back(
    h: Holding, identity: Identity, template: TemplateFiles, source: Frozen, manifest: Manifest
) -> None:
    if not manifest.with_memory:
        await verify(source, manifest)
        await boot(h, identity, template, source.disk)
        return
    if manifest.vmm != h.host.vmm:
        raise SnapshotUnfit(
            f"The sandbox was suspended under {manifest.vmm} and this host has {h.host.vmm}; its memory cannot "
            "be taken up. Its disk can still be booted."
        )
    async with h.host.starts:
        guest = h.new_guest()
        async with asyncio.TaskGroup() as group:  # on one core the files are read, on the other the VM starts
            check = group.create_task(_outcome(verify(source, manifest)))
            start = group.create_task(_outcome(guest.start(template, source)))
        for error in (check.result(), start.result()):
            if error is not None:
                raise error
        await guest.initialise(identity, "restore")


async def copy_to(h: Holding, target: Frozen, reason: FreezeReason, *, memory: bool) -> Manifest:
    """Make a copy of it as it is at one moment; it goes on. Raises Conflict, what kept it from that, and Died."""
    if h.entry.state == "suspended":
        return await _copy_stored(h, target, memory=memory)
    paused = h.paused
    guest = h.guest if paused and h.guest else h.running_guest(reason)
    await asyncio.to_thread(storage.begin, target)
    try:
        await _stop(h, guest, reason, paused=paused, memory=memory)
        try:
            if memory:
                await guest.save(target)  # before the copy: one that was saved before runs for a moment for that
            await guest.copy_files(target, memory=memory)
            storage.commit(target, _manifest(h, target, 0, memory=memory))
        finally:
            if not paused:
                await go_on(h, guest, reason)
    except BaseException:
        await asyncio.to_thread(storage.discard, target)
        raise
    return _manifest(h, target, 0, memory=memory)


async def _copy_stored(h: Holding, target: Frozen, *, memory: bool) -> Manifest:
    source = h.stored(h.entry.generation)
    manifest = storage.read(source)
    if manifest is None:
        raise SnapshotDamaged(f"The manifest of snapshot {source.name} is missing.")
    if memory and not manifest.with_memory:
        raise Conflict("The sandbox was suspended without its memory; copy it without memory, or restore it first.")
    if manifest.with_memory and not memory:
        raise Conflict(
            "The sandbox was suspended with its memory, which holds what it had not yet written to its disk; copy it "
            "with memory, or restore it first."
        )
    await verify(source, manifest)
    await copies.copy(source, target, memory=memory)
    copied = _manifest(h, target, 0, memory=memory)
    storage.commit(target, copied)
    return copied


def _manifest(h: Holding, target: Frozen, generation: int, *, memory: bool) -> Manifest:
    return Manifest(
        name=target.name,
        generation=generation,
        template=h.entry.template,
        vcpus=h.entry.vcpus,
        memory_mib=h.entry.memory_mib,
        vmm=h.host.vmm,
        with_memory=memory,
        frozen_at=dt.datetime.now(dt.UTC),
    )


async def _outcome(step: Awaitable[None]) -> Exception | None:
    """Do `step` and return what it raised, so that its neighbour is not cancelled half way."""
    try:
        await step
    except (SpaceError, Died) as error:
        return error
    return None
