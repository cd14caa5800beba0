"""Checks a frozen VM against its digests before anything is started from it.

What it shares with a settled template is not read again: a damaged block there is found when the template is verified
whole, which its owner does after each start of the host and once a day.
"""

import asyncio
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from space.disk import bases as known_bases
from space.disk import chunks
from space.disk import frozen as storage
from space.disk.bases import Place
from space.disk.chunks import Table
from space.disk.frozen import Frozen, Manifest, Part
from space.disk.settlement import at_once
from space.model.errors import SnapshotDamaged


async def verify(frozen: Frozen, manifest: Manifest) -> None:
    """Raise SnapshotDamaged, naming the part, unless every file is there and is what was written.

    Until it has settled there are no digests, and only presence is checked: it was frozen seconds ago by this host.
    """
    places = _places(frozen, manifest)
    storage.check_reached(frozen, manifest)
    if manifest.digests is None:
        return
    bases = known_bases.of(frozen, manifest)
    tables = await asyncio.to_thread(storage.read_tables, frozen, manifest)
    await _verify(
        frozen, {part: functools.partial(_damaged, path, tables[part], bases, place) for part, path, place in places}
    )


async def verify_whole(frozen: Frozen, manifest: Manifest) -> None:
    """As `verify`, of a settled one, and read all of it from the disk itself, whatever it shares with others."""
    places = _places(frozen, manifest)
    tables = await asyncio.to_thread(storage.read_tables, frozen, manifest)
    await _verify(
        frozen, {part: functools.partial(chunks.damaged_on_disk, path, tables[part]) for part, path, _ in places}
    )


async def fall_back(frozen: Frozen, manifest: Manifest) -> bool:
    """Give up a damaged hot memory where the stored one is whole; tells whether that was so.

    The memory area keeps no checksums, the disk area does.
    """
    if manifest.digests is None or not (frozen.hot_memory.exists() and frozen.stored_memory.exists()):
        return False
    table = (await asyncio.to_thread(storage.read_tables, frozen, manifest)).get("memory")
    if table is None or not await asyncio.to_thread(chunks.damaged, frozen.hot_memory, table):
        return False
    if await asyncio.to_thread(chunks.damaged, frozen.stored_memory, table):
        return False
    frozen.hot_memory.unlink()
    return True


def _places(frozen: Frozen, manifest: Manifest) -> list[tuple[Part, Path, Place | None]]:
    """Return each part with its file, and what that may share; raises SnapshotDamaged where one is missing."""
    memory: Place = "hot_memory" if frozen.hot_memory.exists() else "stored_memory"
    files: dict[Part, tuple[Path, Place | None]] = {
        "disk": (frozen.disk, "disk"),
        "memory": (known_bases.path(frozen, memory), memory),
        "state": (frozen.state, None),
    }
    for part in manifest.parts:
        if not files[part][0].exists():
            raise SnapshotDamaged(f"The {part} of snapshot {frozen.name} is missing; nothing was started.")
    return [(part, *files[part]) for part in manifest.parts]


def _damaged(path: Path, table: Table, bases: Sequence[Frozen], place: Place | None) -> bool:
    return chunks.damaged(path, table, known_bases.known(bases, place) if place else ())


async def _verify(frozen: Frozen, checks: dict[Part, Callable[[], bool]]) -> None:
    try:
        found = await at_once(checks)
    except OSError as error:
        raise SnapshotDamaged(
            f"Snapshot {frozen.name} cannot be read ({error.strerror}); nothing was started."
        ) from error
    for part, damaged in found.items():
        if damaged:
            raise SnapshotDamaged(f"The {part} of snapshot {frozen.name} is not what was written; nothing was started.")
