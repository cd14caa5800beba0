"""Archives that clients have uploaded for the COPY steps of their builds, kept by project and by the client's name.

    <disk area>/uploads/<scope>/<name>          the archive (tar, perhaps gzipped); nothing of it is read on the host
    <disk area>/uploads/<scope>/<name>.json     its SHA-256 and size

The name is the client's own hash over its files, which it does not explain; a client whose names are the digests of the
bytes has that checked. All of it is cache: clients ask whether a name is there, and upload again where it is not.
"""

import asyncio
import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterable
from pathlib import Path
from typing import BinaryIO

import pydantic

from space.disk.layers import HALF_MADE
from space.host import files
from space.host.room import check_room
from space.layout import Layout
from space.model.build import is_files_name
from space.model.errors import InvalidArgument, NotFound, TooLarge
from space.model.ids import is_id
from space.wire.builds import MAX_FILES_BYTES, StoredFiles

KEEP_DAYS = 7
MAX_BYTES = 8 * 1024**3
"""Of all archives of this host together."""

_ROOM_BYTES = 64 * 1024**2
_MIB = 1024**2


def find(layout: Layout, scope: str, name: str) -> tuple[Path, StoredFiles]:
    """Return an archive, which counts as used; raises NotFound."""
    at = _at(layout, scope, name)
    try:
        stored = StoredFiles.model_validate_json(_note(at).read_bytes())
        os.utime(at)
    except (OSError, pydantic.ValidationError):
        raise NotFound(f"The files {name[:80]!r} of a COPY are not here. Upload them, and build again.") from None
    return at, stored


async def keep(
    layout: Layout, scope: str, name: str, body: AsyncIterable[bytes], sha256: str | None = None
) -> StoredFiles:
    """Keep an archive, whole or not at all. Raises TooLarge, StorageFull, and InvalidArgument for another digest."""
    at = _at(layout, scope, name)
    await asyncio.to_thread(_trim, layout)
    for folder in (at.parent.parent, at.parent):
        files.make_dir(folder, mode=0o700)
    with tempfile.TemporaryDirectory(dir=layout.disk_area, prefix=HALF_MADE) as work:
        fresh = Path(work) / "archive"
        with fresh.open("xb") as file:
            stored = await _receive(layout, file, body)
        if sha256 is not None and stored.sha256 != sha256:
            raise InvalidArgument(f"The files have the SHA-256 {stored.sha256}, not the one they were announced with.")
        fresh.chmod(0o600)
        _note(at).unlink(missing_ok=True)
        fresh.rename(at)
    files.write_atomic(_note(at), stored.model_dump_json(), synced=False)
    return stored


async def _receive(layout: Layout, file: BinaryIO, body: AsyncIterable[bytes]) -> StoredFiles:
    digest, size, checked = hashlib.sha256(), 0, 0
    async for chunk in body:
        size += len(chunk)
        if size > MAX_FILES_BYTES:
            raise TooLarge(
                f"The files of one COPY may have {MAX_FILES_BYTES // _MIB} MiB; leave out what is not needed."
            )
        if size >= checked:
            check_room(layout.disk_area, _ROOM_BYTES, "The files of a build")
            checked = size + _ROOM_BYTES // 2
        digest.update(chunk)
        await asyncio.to_thread(file.write, chunk)
    return StoredFiles(sha256=digest.hexdigest(), size_bytes=size)


def _at(layout: Layout, scope: str, name: str) -> Path:
    if not is_id(scope) or not is_files_name(name) or name.endswith(".json"):
        raise NotFound("There are no files of this name.")
    return layout.disk_area / "uploads" / scope / name


def _note(at: Path) -> Path:
    return at.with_name(f"{at.name}.json")


def _trim(layout: Layout) -> None:
    """Remove what was not used for days, and the least recently used of what is too much."""
    found = []
    for path in layout.disk_area.glob("uploads/*/*"):
        with contextlib.suppress(FileNotFoundError):
            if path.suffix != ".json":
                found.append((path.stat().st_mtime, path.stat().st_size, path))
    total, oldest = 0, time.time() - KEEP_DAYS * 86400
    for used_at, size, path in sorted(found, reverse=True):
        total += size
        if used_at < oldest or total > MAX_BYTES:
            _note(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
