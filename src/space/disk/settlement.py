"""Brings a frozen VM to where it would survive a loss of power: synced, stored beside its disk, read back, recorded.

Only what is its own is read, and written: blocks that it shares with a frozen VM of known content (its template's, its
own suspension before this one) were read when that was settled. Its stored memory is a reflink of that one's with its
own chunks written over it.
"""

import asyncio
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from space.disk import bases as known_bases
from space.disk import chunks
from space.disk import frozen as storage
from space.disk.bases import Place
from space.disk.chunks import Table
from space.disk.copies import fill
from space.disk.frozen import Frozen, Manifest, Part
from space.host import files
from space.model.errors import SnapshotDamaged

T = TypeVar("T")


class _LostError(Exception):
    """A part did not reach the disk, and what is in the page cache of it may be anything by now."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self.part: Part = part


async def settle(frozen: Frozen, bases: Sequence[Frozen] = ()) -> Manifest:
    """Store memory beside the disk, sync all, read back what is its own, and record the digests. Idempotent.

    `bases` are what it may share blocks with, the likest first; those that are gone or not settled are left out. The
    hot memory stays where it is, synced too: a reflink of it would else have to write it back first. Raises
    SnapshotDamaged where what was read back is not what was written, and OSError.
    """
    manifest = storage.read(frozen)
    if manifest is None:
        raise SnapshotDamaged(f"Snapshot {frozen.name} was never finished.")
    if manifest.digests is not None:
        return manifest
    storage.check_reached(frozen, manifest)
    works: dict[Part, Callable[[], Table]] = {
        "disk": functools.partial(_in_place, frozen, "disk", frozen.disk, bases),
        "state": functools.partial(_in_place, frozen, None, frozen.state, ()),
        "memory": functools.partial(_memory, frozen, bases),
    }
    try:
        tables = await at_once({part: works[part] for part in manifest.parts})
    except _LostError as error:
        await asyncio.to_thread(storage.commit, frozen, manifest.model_copy(update={"lost": error.part}))
        text = f"The {error.part} of snapshot {frozen.name} could not be written by the host."
        raise SnapshotDamaged(text) from error
    settled = manifest.model_copy(
        update={
            "digests": {part: table.digest for part, table in tables.items()},
            "bases": tuple(base.name for base in bases),
        }
    )
    await asyncio.to_thread(_record, frozen, settled, tables)
    return settled


def _record(frozen: Frozen, settled: Manifest, tables: Mapping[Part, Table]) -> None:
    storage.write_tables(frozen, tables)
    files.sync_dir(frozen.folder)
    storage.commit(frozen, settled)


def _in_place(frozen: Frozen, place: Place | None, path: Path, bases: Sequence[Frozen]) -> Table:
    """Sync a file that stays where it is, and return its table."""
    _sync("disk" if path == frozen.disk else "state" if path == frozen.state else "memory", path)
    table, own = chunks.take(path, known_bases.known(bases, place) if place else ())
    _reread(frozen, path, table, own)
    return table


def _memory(frozen: Frozen, bases: Sequence[Frozen]) -> Table:
    if not frozen.hot_memory.exists():  # stored by a version whose digests were of another form
        return _in_place(frozen, None, frozen.stored_memory, ())
    _sync("memory", frozen.hot_memory)
    table, _ = chunks.take(frozen.hot_memory, known_bases.known(bases, "hot_memory"))
    written = fill(frozen.stored_memory, frozen.hot_memory, table, known_bases.with_memory(bases, "stored_memory"))
    files.sync_file(frozen.stored_memory)
    _reread(frozen, frozen.stored_memory, table, written)
    return table


def _sync(part: Part, path: Path) -> None:
    """Bring what the VM left to the disk; where that fails, what it left is lost."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise _LostError(part) from error
    finally:
        os.close(descriptor)


def _reread(frozen: Frozen, path: Path, table: Table, numbers: set[int]) -> None:
    if not chunks.reread(path, table, numbers):
        raise SnapshotDamaged(f"The {path.name} of snapshot {frozen.name} did not reach the disk as it was written.")


async def at_once(works: Mapping[Part, Callable[[], T]]) -> dict[Part, T]:
    """Do each in a thread of its own and return the results; raises the first error as it is, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {part: group.create_task(asyncio.to_thread(work)) for part, work in works.items()}
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return {part: task.result() for part, task in tasks.items()}
