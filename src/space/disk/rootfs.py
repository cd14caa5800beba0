"""The files of a VM: its disk (a reflink of a template's), its memory file, and their removal."""

import asyncio
import errno
import os
import shutil
from pathlib import Path

from space.host import files
from space.layout import Layout
from space.model.errors import SpaceError, StorageFull
from space.model.ids import SandboxId, is_id

_NO_REFLINK = {errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY}


async def clone(source: Path, target: Path) -> None:
    """Make `target` a copy of `source` that shares its blocks; takes the place of a file that is there.

    The target's folder is made where it is missing. Raises StorageFull, or SpaceError where the file system cannot
    share blocks between the two.
    """
    await asyncio.to_thread(make_folder, target.parent)
    await reflink(source, target)


async def reflink(source: Path, target: Path) -> None:
    """As `clone`, into a folder that is there and stays as it is."""
    await asyncio.to_thread(_reflink, source, target)


def _reflink(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        files.reflink(source, target)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StorageFull(
                f"{target.parent} has no room for another disk. Delete sandboxes or templates."
            ) from error
        if error.errno in _NO_REFLINK:
            raise SpaceError(
                f"{target} cannot share blocks with {source}: both must lie in the disk area, on btrfs. Stop SPACE, "
                "and let `space up` prepare its data folder again."
            ) from error
        raise


async def make_memory_file(path: Path, mib: int) -> None:
    """Make the file that backs a guest's memory: `mib` MiB of zeros; takes the place of a file that is there.

    It is sparse: the area is as large as all admitted memory, and zeros are not worth writing.
    """
    await asyncio.to_thread(_make_memory_file, path, mib)


def _make_memory_file(path: Path, mib: int) -> None:
    make_folder(path.parent)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, mib * 1024**2)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a VM's folder: root's, so that a VMM can neither add nor replace a file in it."""
    path.parent.mkdir(mode=0o711, exist_ok=True)
    files.make_dir(path, mode=0o711)


async def remove_vm_files(layout: Layout, sandbox: SandboxId) -> None:
    """Delete a VM's disk and memory and all else in its folders; fine when there is nothing."""
    if not is_id(sandbox):
        raise ValueError(f"{sandbox!r} is not a sandbox id")  # it becomes part of a path
    for folder in (layout.vm_dir(sandbox), layout.memory_file(sandbox).parent):
        await asyncio.to_thread(_remove, folder)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return


def existing_vms(layout: Layout) -> set[SandboxId]:
    """Return the sandboxes that have files in either area."""
    folders = [folder for area in (layout.disk_area, layout.memory_area) for folder in (area / "vms").glob("*")]
    return {SandboxId(folder.name) for folder in folders if is_id(folder.name)}
