"""Copies of frozen VMs: by reflink where the files are beside each other, else chunk by chunk what differs."""

import asyncio
import errno
import os
from pathlib import Path

from space.disk import bases as known_bases
from space.disk import chunks
from space.disk import frozen as storage
from space.disk.chunks import Table
from space.disk.frozen import Frozen
from space.disk.rootfs import reflink
from space.host import files
from space.model.errors import SnapshotDamaged, StorageFull


async def copy(source: Frozen, target: Frozen, *, memory: bool) -> None:
    """Put a frozen VM's files to another name; the caller commits it. Raises as `clone_memory`."""
    await asyncio.to_thread(storage.begin, target)
    await reflink(source.disk, target.disk)
    if memory:
        await reflink(source.state, target.state)
        await clone_memory(source, target.hot_memory)


async def clone_memory(frozen: Frozen, target: Path) -> None:
    """Make a copy of the memory in a folder of the memory area that is there; the frozen one stays.

    Raises SnapshotDamaged where it has to be taken from storage and cannot be read, and StorageFull.
    """
    if frozen.hot_memory.exists():
        await reflink(frozen.hot_memory, target)
    else:
        await asyncio.to_thread(_from_storage, frozen, target)


async def warm(frozen: Frozen) -> None:
    """Make its hot memory again where it was given up; a kill leaves nothing half made. Raises as `clone_memory`."""
    if not frozen.hot_memory.exists():
        frozen.hot_memory.parent.mkdir(mode=0o700, exist_ok=True)
        await asyncio.to_thread(_warm, frozen)


def _warm(frozen: Frozen) -> None:
    fresh = frozen.hot_memory.with_name(f".{frozen.name}")
    _from_storage(frozen, fresh)
    fresh.rename(frozen.hot_memory)


def _from_storage(frozen: Frozen, target: Path) -> None:
    manifest = storage.read(frozen)
    if manifest is None or manifest.digests is None:
        raise SnapshotDamaged(f"The memory of snapshot {frozen.name} is missing; nothing was started.")
    table = storage.read_tables(frozen, manifest)["memory"]
    like = known_bases.with_memory(known_bases.of(frozen, manifest), "hot_memory")
    try:
        fill(target, frozen.stored_memory, table, like)
    except OSError as error:
        target.unlink(missing_ok=True)
        if error.errno == errno.ENOSPC:
            raise StorageFull("The memory area is full. Delete or suspend sandboxes, and try again.") from error
        raise SnapshotDamaged(
            f"The memory of snapshot {frozen.name} cannot be read ({error.strerror}); nothing was started."
        ) from error


def fill(target: Path, source: Path, table: Table, like: tuple[Path, Table] | None) -> set[int]:
    """Make `target` of the content of `source`, which is in `table`; return the numbers of the chunks written.

    The others it shares with `like`, a file beside it; None begins with an empty one. Blocks.
    """
    target.unlink(missing_ok=True)
    if like is not None and like[1].size_bytes == table.size_bytes:
        files.reflink(like[0], target)
        wanted = chunks.difference(table, like[1])
    else:
        wanted = set(table.digests)
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, table.size_bytes)
        chunks.copy(source, descriptor, wanted)
    finally:
        os.close(descriptor)
    return wanted
