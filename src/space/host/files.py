"""Small things done to files so that a crash at any moment leaves either the old or the new."""

import contextlib
import ctypes
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_libc = ctypes.CDLL(None)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""linux/fcntl.h, linux/fs.h"""
_FRESH = ".fresh"
"""What the name of a file ends in that is going to replace another."""
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
    with _beside(path, text, mode, owner, synced=synced) as fresh:
        fresh.rename(path)
    if synced:
        sync_dir(path.parent)


def write_fleeting(path: Path, text: str) -> None:
    """Replace a small file (0600) that is of no use once the host went down: it may be empty then.

    A crash of ours leaves the old or the new. ext4 starts to write back what replaces another by rename(2), which takes
    three times as long as all the rest of it; it does not where the two names change places (renameat2(2)).
    """
    with _beside(path, text, 0o600, None, synced=False) as fresh:
        if _libc.renameat2(_AT_FDCWD, os.fsencode(fresh), _AT_FDCWD, os.fsencode(path), _RENAME_EXCHANGE) == 0:
            fresh.unlink()
        else:  # there is nothing to change places with, or the file system does not know how
            fresh.rename(path)


def remove_cut_off(folder: Path) -> None:
    """Remove what is left of writes during which we were killed, from a folder that nobody writes to meanwhile."""
    for left in folder.glob(f".*{_FRESH}"):
        left.unlink()


@contextlib.contextmanager
def _beside(path: Path, text: str, mode: int, owner: int | None, *, synced: bool) -> Iterator[Path]:
    """Write a file beside another, to be renamed in the block; what raises there leaves nothing of it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_FRESH)
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(file.fileno(), mode)
            if owner is not None:
                os.fchown(file.fileno(), owner, owner)
            file.write(text)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        yield fresh
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


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
