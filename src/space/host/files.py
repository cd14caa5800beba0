"""Small things done to files so that a crash at any moment leaves either the old or the new."""

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, text: str, *, mode: int = 0o600, owner: int | None = None) -> None:
    """Replace a small file: written beside it, synced, renamed, and the folder synced.

    `owner` is the uid and gid of the new file, None keeps root's. Blocks for one fsync (milliseconds).
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(file.fileno(), mode)
            if owner is not None:
                os.fchown(file.fileno(), owner, owner)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).rename(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def make_dir(path: Path, *, mode: int, uid: int = 0, gid: int = 0) -> None:
    """Make a folder, or bring an existing one to this mode and owner; the parent must exist."""
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    os.chown(path, uid, gid, follow_symlinks=False)
    path.chmod(mode)
