"""Room on a file system: how much is free, how much is held back, and a refusal before the last byte is used."""

import os
from pathlib import Path

from space.model.errors import StorageFull

RESERVE_BYTES = 512 * 1024**2
"""Never promised to anyone: btrfs needs free space to delete, and a running guest must still be able to write."""

COMMIT_S = 5
"""The disk area's commit interval in seconds: how long the room of a deleted file may stay taken."""


def free_bytes(path: Path) -> int:
    """Return what an unprivileged writer could still use on the file system that holds `path`.

    btrfs counts what was written or deleted only at its next commit: on the disk area the answer is `COMMIT_S` old.
    """
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


AREA_CURE = "Delete sandboxes or templates, or give the disk area more room (SPACE_DISK_GIB)."
HOST_CURE = (
    "That is the host's own disk: make room there, use another data folder, or start a new one with smaller areas "
    "(SPACE_DISK_GIB, SPACE_MEMORY_GIB)."
)


def check_room(path: Path, need_bytes: int, purpose: str, cure: str = AREA_CURE) -> None:
    """Raise StorageFull unless `need_bytes` fit on the file system of `path` with the reserve left over.

    `cure` says what to do for that file system: AREA_CURE on the disk area, HOST_CURE for what lies beside it.
    """
    free = free_bytes(path)
    if free - RESERVE_BYTES < need_bytes:
        raise StorageFull(
            f"{purpose} needs {mib(need_bytes)} MiB, but {path} has {mib(free)} MiB free, of which "
            f"{mib(RESERVE_BYTES)} MiB are held back. {cure}",
            retry_after_s=COMMIT_S,
        )


def mib(size_bytes: int) -> int:
    """Return a size in whole MiB, rounded up, for messages."""
    return -(-size_bytes // 1024**2)
