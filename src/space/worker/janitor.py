"""Removes what carries this instance's names and belongs to nobody: left by a worker that was killed in a step."""

import asyncio
import itertools

from space.disk import frozen as storage
from space.disk import layers as build_layers
from space.disk import rootfs
from space.disk.frozen import Frozen
from space.host import cgroup
from space.image import catalog
from space.layout import UID_RANGE_SIZE, Layout
from space.model.ids import SandboxId
from space.net import slot as slots
from space.telemetry import logger
from space.worker.killing import kill_uids
from space.worker.records import VmRecord

log = logger()


async def sweep(layout: Layout, records: list[VmRecord], *, keep_frozen: set[str] | None) -> None:
    """Remove every VMM process, slot, cgroup and file of the instance that no record names.

    `keep_frozen`: the frozen VMs that somebody owns; None keeps all. Called once, after adoption and before anything
    new is made: afterwards each owner cleans up after itself.
    """
    first, uids = layout.vm_uid(0), {layout.vm_uid(record.uid_number) for record in records}
    processes = sum([await kill_uids(range(a, b)) for a, b in gaps(first, layout.uid_base + UID_RANGE_SIZE, uids)])
    stray_slots = slots.existing(layout) - {record.slot for record in records}
    for number in stray_slots:
        await slots.destroy(layout, number)
    known = {SandboxId(record.vm) for record in records}
    stray_files = rootfs.existing_vms(layout) - known
    for vm in stray_files:
        await rootfs.remove_vm_files(layout, vm)
    volumes = {path.stem for path in layout.volume_records_dir.glob("*.json")}
    stray_cgroups = cgroup.sandboxes(layout.instance) - known - volumes
    for name in stray_cgroups:
        await cgroup.remove(layout.instance, name)
    stray_frozen = set() if keep_frozen is None else storage.names(layout) - keep_frozen
    for name in stray_frozen:
        await asyncio.to_thread(storage.discard, Frozen(layout, name))
    await asyncio.to_thread(catalog.remove_half_made, layout)
    await asyncio.to_thread(build_layers.remove_half_made, layout)
    log.info(
        "swept",
        processes=processes,
        slots=len(stray_slots),
        files=len(stray_files),
        cgroups=len(stray_cgroups),
        frozen=len(stray_frozen),
    )


def gaps(start: int, end: int, taken: set[int]) -> list[tuple[int, int]]:
    """Return the half-open ranges of [start, end) without the numbers in `taken`."""
    edges = [start - 1, *sorted(number for number in taken if start <= number < end), end]
    return [(low + 1, high) for low, high in itertools.pairwise(edges) if low + 1 < high]
