"""Small things done to files so that a crash at any moment leaves either the old or the new."""

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

_FICLONE = 0x40049409
"""_IOW(0x94, 9, int), linux/fs.h: share all extents of another file of the same file system."""


def reflink(source: Path, target: Path, *, mode: int = 0o600) -> None:
    """Make `target` a copy of `source` that shares its blocks until either is written (ioctl_ficlone(2)).

    Raises FileExistsError, and OSError EXDEV or EOPNOTSUPP where the two are not on one file system that can do it;
    nothing is left behind then. Writes back the source's dirty pages first: milliseconds to tenths of a second.
    """
    with source.open("rb") as old:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.fchmod(descriptor, mode)
            fcntl.ioctl(descriptor, _FICLONE, old.fileno())
        except BaseException:
            target.unlink()
            raise
        finally:
            os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's content durable; its name needs `sync_dir`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_dir(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, text: str, *, mode: int = 0o600, owner: int | None = None, synced: bool = True) -> None:
    """Replace a small file: written beside it, synced, renamed, and the folder synced.

    `owner` is the uid and gid of the new file, None keeps root's. Blocks for two fsyncs (milliseconds); with `synced`
    False for none, and the file is whole after a crash of ours but perhaps not after one of the host.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(file.fileno(), mode)
            if owner is not None:
                os.fchown(file.fileno(), owner, owner)
            file.write(text)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        Path(name).rename(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    if synced:
        sync_dir(path.parent)


def make_dir(path: Path, *, mode: int, uid: int = 0, gid: int = 0) -> None:
    """Make a folder, or bring an existing one to this mode and owner; the parent must exist.

    Raises NotADirectoryError where something else has the name, a link too: what it leads to is not given away.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
