"""Removes what carries this instance's names and belongs to no sandbox: left by a worker that was killed in a step."""

import itertools

from space.disk import rootfs
from space.host import cgroup
from space.layout import UID_RANGE_SIZE, Layout
from space.model.ids import SandboxId
from space.net import slot as slots
from space.telemetry import logger
from space.worker.host import kill_uids

log = logger()


async def sweep(layout: Layout, *, slot_numbers: set[int], uids: set[int], sandboxes: set[SandboxId]) -> None:
    """Remove every VMM process, slot, cgroup and file of the instance that is not in the given sets.

    Called once, after adoption and before anything new is made: afterwards each machine cleans up after itself.
    """
    first = layout.vm_uid(0)
    processes = sum([await kill_uids(range(a, b)) for a, b in gaps(first, layout.uid_base + UID_RANGE_SIZE, uids)])
    stray_slots = slots.existing(layout) - slot_numbers
    for number in stray_slots:
        await slots.destroy(layout, number)
    stray_files = rootfs.existing_vms(layout) - sandboxes
    for sandbox in stray_files:
        await rootfs.remove_vm_files(layout, sandbox)
    stray_cgroups = cgroup.sandboxes(layout.instance) - sandboxes
    for group in stray_cgroups:
        await cgroup.remove(layout.instance, group)
    log.info(
        "swept",
        processes=processes,
        slots=len(stray_slots),
        files=len(stray_files),
        cgroups=len(stray_cgroups),
    )


def gaps(start: int, end: int, taken: set[int]) -> list[tuple[int, int]]:
    """Return the half-open ranges of [start, end) without the numbers in `taken`."""
    edges = [start - 1, *sorted(number for number in taken if start <= number < end), end]
    return [(low + 1, high) for low, high in itertools.pairwise(edges) if low + 1 < high]
