"""Frozen VMs whose content is known, as something to compare others with: what is shared with them needs no reading.

Their shared blocks were read when they were settled, and are read again whenever they themselves are verified whole.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from space.disk import chunks
from space.disk import frozen as storage
from space.disk.chunks import Known, Table
from space.disk.frozen import Frozen, Manifest, Part
from space.model.errors import SnapshotDamaged

Place = Literal["disk", "hot_memory", "stored_memory"]
"""Files that VMs share blocks of; each only with files of the same place."""


def of(frozen: Frozen, manifest: Manifest) -> list[Frozen]:
    """Return what a settled one may share blocks with."""
    return [Frozen(frozen.layout, name) for name in manifest.bases]


def known(candidates: Iterable[Frozen], place: Place) -> list[Known]:
    """Return this file of each candidate that is settled and has it; the others are left out. Blocks."""
    return [found for one in candidates if (found := _known(one, place)) is not None]


def _known(frozen: Frozen, place: Place) -> Known | None:
    """Return one file's; None where anything about it is not as it should be, or changed while it was looked at."""
    try:
        if (read := _tables(frozen)) is None:
            return None
        manifest, tables = read
        table = tables.get(part_of(place))
        found = None if table is None else chunks.known(path(frozen, place), table)
        return found if storage.read(frozen) == manifest else None
    except (OSError, SnapshotDamaged):
        return None


def with_memory(candidates: Iterable[Frozen], place: Place) -> tuple[Path, Table] | None:
    """Return the memory of the first candidate that has a known one there, to make another of; None for none."""
    for one in candidates:
        try:
            read = _tables(one)
        except SnapshotDamaged:
            continue
        if read is not None and "memory" in read[1] and path(one, place).exists():
            return path(one, place), read[1]["memory"]
    return None


def _tables(frozen: Frozen) -> tuple[Manifest, dict[Part, Table]] | None:
    manifest = storage.read(frozen)
    if manifest is None or manifest.digests is None:
        return None
    return manifest, storage.read_tables(frozen, manifest)


def path(frozen: Frozen, place: Place) -> Path:
    """Return where a file lies."""
    return {"disk": frozen.disk, "hot_memory": frozen.hot_memory, "stored_memory": frozen.stored_memory}[place]


def part_of(place: Place) -> Part:
    """Return which part a file holds."""
    return "disk" if place == "disk" else "memory"
