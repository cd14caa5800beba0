"""The two areas of an instance: disks (root filesystems, templates, kernels) and guests' memory.

Both are btrfs, for its reflinks. Where the data folder is btrfs itself, the disk area is a plain folder of it;
elsewhere it is an image mounted there. Memory always has an image of its own: a page of a guest's memory file that
cannot be written kills the VM with SIGBUS, so a full disk area must not be able to take its room.

The disk area copies on write and keeps checksums. The memory area writes in place (`nodatacow`, which still allows
reflinks): with copies, a guest that rewrites its memory would need room for both until the next commit, and its size
is what was admitted plus a margin, not twice that. Deleted files give their room back at btrfs's next commit, after 5 s
(`COMMIT_S`) or when somebody needs it (`btrfs.commit`).
"""

import errno
from pathlib import Path

from space.disk import btrfs
from space.disk.btrfs import Image
from space.host import files, mounts
from space.host.command import CommandError
from space.host.room import COMMIT_S, RESERVE_BYTES, free_bytes, mib
from space.layout import Layout
from space.model.errors import InvalidArgument, SpaceError, StorageFull

__all__ = ["RESERVE_BYTES", "free_bytes", "has_room", "prepare", "release"]

GIB = 1024**3
_MEMORY_IMAGE = "mem.img"
_MEMORY_NODE_BYTES = 4096
"""btrfs sets room apart by it for each page that a guest has written, and writes memory back where that is too much
(docs/decisions/0035)."""
MIN_DISK_GIB, MAX_DEFAULT_DISK_GIB = 4, 64
_SHARE_PERCENT = 60
"""Of what is free: how much both images together take where nobody says otherwise; the rest is for cache and database,
and for everyone else on the host."""


def _disk_image(layout: Layout) -> Image:
    # a chunk of metadata (256 MiB, twice) with each 8 of data (1 GiB): what 4 KiB writes all over a disk can need
    options = f"noatime,nodiscard,commit={COMMIT_S},metadata_ratio=8"
    return Image(layout.data_dir / "disk.img", layout.disk_area, f"space-{layout.instance}-disk", options)


def _memory_image(layout: Layout) -> Image:
    options = f"noatime,nodiscard,nodatacow,commit={COMMIT_S}"
    label = f"space-{layout.instance}-mem"
    return Image(layout.data_dir / _MEMORY_IMAGE, layout.memory_area, label, options, _MEMORY_NODE_BYTES)


def memory_image_bytes(memory_gib: int) -> int:
    """Return the size of the memory image for this much admitted RAM.

    The margin holds btrfs's metadata, and pages that are on their way to the disk while their old room is taken.
    """
    return memory_gib * GIB + memory_gib * GIB // 8 + GIB // 2


def default_memory_mib(data_dir: Path) -> int:
    """Return how much RAM to admit for guests where nobody says: as much as the host's disk has room to back.

    A quarter of what is free, at least 1 GiB; once the memory image is there, what it was made for, so that the answer
    does not change from start to start.
    """
    image = data_dir / _MEMORY_IMAGE
    if image.exists():
        gib = max(0, image.stat().st_size - GIB // 2) * 8 // 9 // GIB
    else:
        gib = free_bytes(data_dir) // 4 // GIB
    return max(gib, 1) * 1024


async def prepare(layout: Layout, *, disk_gib: int | None, memory_gib: int) -> None:
    """Make and mount what is missing of both areas; does nothing where all is there.

    `disk_gib` None keeps an existing disk image as it is, and sizes a new one so that both images take 60 % of what is
    free, between 4 and 64 GiB.
    Images grow when asked for more and never shrink. Raises StorageFull or InvalidArgument, with sizes and a cure,
    where it does not fit.
    """
    layout.data_dir.mkdir(parents=True, exist_ok=True)
    disk, memory = _disk_image(layout), _memory_image(layout)
    plain = await _is_plain(layout, disk.path)
    memory_bytes = memory_image_bytes(memory_gib)
    disk_bytes = 0 if plain else _disk_bytes(layout, disk.path, disk_gib, _missing(memory.path, memory_bytes))
    _check_host_room(layout, disk_gib, memory_gib, _missing(disk.path, disk_bytes), _missing(memory.path, memory_bytes))
    try:
        if not plain:
            await btrfs.ensure(disk, disk_bytes)
        await btrfs.ensure(memory, memory_bytes)
    except CommandError as error:
        raise SpaceError(f"The data area could not be made: {error}. Cure what it says and start again.") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EFBIG):
            raise StorageFull(f"The host ran out of room while the data area was made: {error}. Make room.") from error
        raise
    for folder in (
        layout.disk_area,
        layout.disk_area / "vms",
        layout.disk_area / "kernels",
        layout.templates_dir,
        layout.memory_area,
        layout.memory_area / "vms",
    ):
        # a VMM passes through to its own files by their names, and lists nothing
        files.make_dir(folder, mode=0o711)


async def _is_plain(layout: Layout, disk_image: Path) -> bool:
    """Tell whether the disk area is a folder of a btrfs that is there already, not an image of ours."""
    if disk_image.exists():
        return False
    found = mounts.mounted_at(layout.disk_area)
    if found is not None and found.fstype == "btrfs":
        return True
    return await mounts.filesystem_of(layout.data_dir) == "btrfs"


def _missing(path: Path, size_bytes: int) -> int:
    return max(0, size_bytes - (path.stat().st_size if path.exists() else 0))


def default_disk_bytes(host_free_bytes: int, memory_bytes: int) -> int:
    """Return the size of a new disk image where nobody says; `memory_bytes` is what the memory image still takes."""
    share_gib = (host_free_bytes * _SHARE_PERCENT // 100 - memory_bytes) // GIB
    return min(max(share_gib, MIN_DISK_GIB), MAX_DEFAULT_DISK_GIB) * GIB


def _disk_bytes(layout: Layout, path: Path, disk_gib: int | None, memory_missing_bytes: int) -> int:
    if disk_gib is not None:
        return disk_gib * GIB
    if path.exists():
        return path.stat().st_size
    return default_disk_bytes(free_bytes(layout.data_dir), memory_missing_bytes)


def _check_host_room(layout: Layout, disk_gib: int | None, memory_gib: int, disk_bytes: int, memory_bytes: int) -> None:
    """Raise where the two images, as far as they are not there yet, do not fit on the host with its reserve left."""
    free, need = free_bytes(layout.data_dir), disk_bytes + memory_bytes
    if need == 0 or need <= free - RESERVE_BYTES:
        return
    text = (
        f"{layout.data_dir} has {mib(free)} MiB free, but the data area takes {mib(need)} MiB more "
        f"({mib(disk_bytes)} for disks, {mib(memory_bytes)} for {memory_gib} GiB of guests' memory) and "
        f"{mib(RESERVE_BYTES)} MiB stay free. Make room, use another data folder (SPACE_DATA_DIR), or ask for less "
        "(SPACE_DISK_GIB, SPACE_MEMORY_GIB)."
    )
    raise StorageFull(text) if disk_gib is None else InvalidArgument(text)


async def release(layout: Layout) -> None:
    """Unmount both areas and free their loop devices; nothing in them is lost. Raises Conflict while one is in use."""
    for each in (_memory_image(layout), _disk_image(layout)):
        await btrfs.unmount(each)


def has_room(layout: Layout) -> bool:
    """Tell whether the disk area has more free than its reserve."""
    return free_bytes(layout.disk_area) > RESERVE_BYTES
