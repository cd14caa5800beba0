"""Frozen VMs on storage: disk, memory and device state that belong together, and a manifest that says so.

    <disk area>/frozen/<name>/     manifest.json, disk, state, memory (once settled)
    <memory area>/frozen/<name>    memory as the VM left it, ready to be mapped; may be gone once `memory` is stored

What is frozen never changes: VMs are started from reflinks and copies of it, and it is checked against the manifest's
digests each time. It exists once its manifest does (one rename), and would survive a loss of power once the manifest
holds digests: then every file was synced, dropped from the page cache, and read back.
"""

import asyncio
import dataclasses
import datetime as dt
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import pydantic

from space.disk.rootfs import reflink
from space.host import files
from space.layout import Layout
from space.model.errors import SnapshotDamaged

_CHUNK_BYTES = 64 * 1024
_ZERO = bytes(_CHUNK_BYTES)
Part = Literal["disk", "memory", "state"]


class Manifest(pydantic.BaseModel):
    """What was frozen. `vmm` says what can take its memory up; `digests` is None until settled."""

    model_config = pydantic.ConfigDict(frozen=True)

    name: str
    generation: int
    template: str
    vcpus: int
    memory_mib: int
    vmm: str
    with_memory: bool
    frozen_at: dt.datetime
    digests: dict[Part, str] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """Where one frozen VM lies; touches nothing by itself. `name` is ours, never a client's text."""

    layout: Layout
    name: str

    @property
    def folder(self) -> Path:
        """Where all of it lies but the hot memory."""
        return self.layout.disk_area / "frozen" / self.name

    @property
    def disk(self) -> Path:
        """The root filesystem."""
        return self.folder / "disk"

    @property
    def state(self) -> Path:
        """The VMM's device state; only with memory."""
        return self.folder / "state"

    @property
    def stored_memory(self) -> Path:
        """The memory as it was stored; there once it has settled."""
        return self.folder / "memory"

    @property
    def hot_memory(self) -> Path:
        """The memory as the VM left it, ready to be mapped; may have been given up."""
        return self.layout.memory_area / "frozen" / self.name

    @property
    def manifest_file(self) -> Path:
        """What makes it exist."""
        return self.folder / "manifest.json"


def begin(frozen: Frozen) -> None:
    """Make an empty place for it; what an unfinished attempt left there is removed. Root's alone."""
    discard(frozen)
    for parent in (frozen.folder.parent, frozen.hot_memory.parent):
        parent.mkdir(mode=0o700, exist_ok=True)
    frozen.folder.mkdir(mode=0o700)


def commit(frozen: Frozen, manifest: Manifest) -> None:
    """Make it exist, or give it a new manifest: from here on it is found after a crash of ours.

    Synced only once it has digests: before, the files it speaks of are not synced either.
    """
    files.write_atomic(frozen.manifest_file, manifest.model_dump_json(), synced=manifest.digests is not None)


def read(frozen: Frozen) -> Manifest | None:
    """Return its manifest; None where it was never finished. Raises SnapshotDamaged for one that makes no sense."""
    try:
        return Manifest.model_validate_json(frozen.manifest_file.read_bytes())
    except FileNotFoundError:
        return None
    except pydantic.ValidationError as error:
        raise SnapshotDamaged(f"The manifest of snapshot {frozen.name} is damaged.") from error


def discard(frozen: Frozen) -> None:
    """Remove all of it, the manifest first; fine when there is nothing."""
    frozen.manifest_file.unlink(missing_ok=True)
    shutil.rmtree(frozen.folder, ignore_errors=True)
    frozen.hot_memory.unlink(missing_ok=True)


def names(layout: Layout) -> set[str]:
    """Return the names of all that is or was to be frozen, unfinished ones too."""
    folders = (layout.disk_area / "frozen", layout.memory_area / "frozen")
    return {entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()}


async def copy(source: Frozen, target: Frozen, *, memory: bool) -> None:
    """Put a frozen VM's files to another name, by reflink where they can be; the caller commits it."""
    await asyncio.to_thread(begin, target)
    await reflink(source.disk, target.disk)
    if memory:
        await reflink(source.state, target.state)
        await clone_memory(source, target.hot_memory)


def rename(source: Frozen, target: Frozen, manifest: Manifest) -> None:
    """Give a committed frozen VM another name; done twice or half before a crash, the rest is done again."""
    commit(source, manifest.model_copy(update={"name": target.name}))
    if source.hot_memory.exists():
        source.hot_memory.rename(target.hot_memory)
    source.folder.rename(target.folder)


async def settle(frozen: Frozen) -> Manifest:
    """Store memory beside the disk, sync all, read it back, and record the digests. Idempotent; about 1 s per 300 MB.

    The hot memory stays where it is, synced too: a reflink of it would else have to write it back first. Raises
    SnapshotDamaged where what was read back is not what was written.
    """
    manifest = read(frozen)
    if manifest is None:
        raise SnapshotDamaged(f"Snapshot {frozen.name} was never finished.")
    if manifest.digests is not None:
        return manifest
    works: dict[Part, Callable[[], str]] = {"disk": functools.partial(_sync_and_digest, frozen.disk)}
    if manifest.with_memory:
        works["state"] = functools.partial(_sync_and_digest, frozen.state)
        works["memory"] = functools.partial(_store, frozen.hot_memory, frozen.stored_memory)
    digests = await _at_once(works)
    files.sync_dir(frozen.folder)
    settled = manifest.model_copy(update={"digests": digests})
    commit(frozen, settled)
    return settled


async def verify(frozen: Frozen, manifest: Manifest) -> None:
    """Raise SnapshotDamaged, naming the part, unless every file is there and is what was written.

    Until it has settled there are no digests, and only presence is checked: it was frozen seconds ago by this host.
    """
    parts: dict[Part, Path] = {"disk": frozen.disk}
    if manifest.with_memory:
        hot = frozen.hot_memory
        parts |= {"state": frozen.state, "memory": hot if hot.exists() else frozen.stored_memory}
    for part, path in parts.items():
        if not path.exists():
            raise SnapshotDamaged(f"The {part} of snapshot {frozen.name} is missing; nothing was started.")
    if manifest.digests is None:
        return
    try:
        digests = await _at_once({part: functools.partial(digest, path) for part, path in parts.items()})
    except OSError as error:
        raise SnapshotDamaged(
            f"Snapshot {frozen.name} cannot be read ({error.strerror}); nothing was started."
        ) from error
    for part, found in digests.items():
        if found != manifest.digests.get(part):
            raise SnapshotDamaged(f"The {part} of snapshot {frozen.name} is not what was written; nothing was started.")


async def _at_once(works: Mapping[Part, Callable[[], str]]) -> dict[Part, str]:
    """Do each in a thread of its own and return the results; raises the first error as it is, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {part: group.create_task(asyncio.to_thread(work)) for part, work in works.items()}
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return {part: task.result() for part, task in tasks.items()}


async def clone_memory(frozen: Frozen, target: Path) -> None:
    """Make a copy of the memory in a folder of the memory area that is there; the frozen one stays."""
    if frozen.hot_memory.exists():
        await reflink(frozen.hot_memory, target)
    else:
        await asyncio.to_thread(_copy, frozen.stored_memory, target)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content that is not zero, with its place; holes and zeros count the same."""
    return _walk(path, None)


def _sync_and_digest(path: Path) -> str:
    files.sync_file(path)
    return _reread(path, digest(path))


def _store(source: Path, target: Path) -> str:
    target.unlink(missing_ok=True)
    written = _copy(source, target)
    files.sync_file(target)
    files.sync_file(source)
    return _reread(target, written)


def _reread(path: Path, expected: str) -> str:
    """Read a synced file again, past the page cache, and return the digest; raises SnapshotDamaged if it differs."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    found = digest(path)
    if found != expected:
        raise SnapshotDamaged(f"{path.name} did not reach the disk as it was written.")
    return found


def _copy(source: Path, target: Path) -> str:
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, source.stat().st_size)
        return _walk(source, descriptor)
    finally:
        os.close(descriptor)


def _walk(source: Path, target: int | None) -> str:
    """Hash what is not zero, and write it to `target` at its place. Blocks: for a thread."""
    found = hashlib.sha256()
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        found.update(size.to_bytes(8, "big"))
        offset = 0
        while offset < size:
            try:
                data = os.lseek(descriptor, offset, os.SEEK_DATA)
            except OSError:  # ENXIO: a hole to the end
                break
            offset = data - data % _CHUNK_BYTES
            hole = os.lseek(descriptor, data, os.SEEK_HOLE)
            while offset < hole:
                chunk = os.pread(descriptor, _CHUNK_BYTES, offset)
                if chunk != _ZERO[: len(chunk)]:
                    found.update(offset.to_bytes(8, "big"))
                    found.update(chunk)
                    if target is not None:
                        os.pwrite(target, chunk, offset)
                offset += _CHUNK_BYTES
    finally:
        os.close(descriptor)
    return found.hexdigest()
