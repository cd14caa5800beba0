"""Volumes: folders that outlive sandboxes and are mounted in several at once."""

import dataclasses
import datetime
import posixpath
import re
from collections.abc import Sequence

from space.model.errors import InvalidArgument
from space.model.ids import ProjectId, VolumeId, WorkerId

DEFAULT_SIZE_MIB, MIN_SIZE_MIB, MAX_SIZE_MIB = 10 * 1024, 16, 1024 * 1024
"""How much a volume may hold. Nothing is set aside for it: it grows as it is written to."""

MAX_MOUNTS = 8
MAX_PATH_BYTES = 1024
NAME = "[A-Za-z0-9_-]{1,64}"
_NAME = re.compile(NAME)
_KERNELS = ("/proc", "/sys", "/dev", "/run")


@dataclasses.dataclass(frozen=True, slots=True)
class Volume:
    """One row. Its content lies on `worker`, and only there."""

    id: VolumeId
    project: ProjectId
    name: str
    worker: WorkerId
    size_mib: int
    created_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    """A volume in a sandbox: which, as it was called then, and where."""

    volume: VolumeId
    name: str
    path: str


def check_name(name: str) -> None:
    """Raise InvalidArgument for what cannot name a volume."""
    if _NAME.fullmatch(name) is None:
        raise InvalidArgument("name: 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'.")


def check_size(size_mib: int) -> None:
    """Raise InvalidArgument for a size that no volume has."""
    if not MIN_SIZE_MIB <= size_mib <= MAX_SIZE_MIB:
        raise InvalidArgument(f"size_mib must be {MIN_SIZE_MIB} to {MAX_SIZE_MIB}; got {size_mib}.")


def check_paths(paths: Sequence[str]) -> None:
    """Raise InvalidArgument where volumes cannot be mounted at these paths of one sandbox."""
    if len(paths) > MAX_MOUNTS:
        raise InvalidArgument(f"A sandbox can have {MAX_MOUNTS} volumes; got {len(paths)}.")
    for path in paths:
        clean = path.startswith("/") and posixpath.normpath(path) == path and not path.startswith("//")
        if not clean or path == "/" or "\0" in path or len(path.encode()) > MAX_PATH_BYTES:
            raise InvalidArgument(
                f"A volume is mounted at an absolute path below /, without '.', '..' and '//'; got {path[:80]!r}."
            )
        if any(path == kernel or path.startswith(f"{kernel}/") for kernel in _KERNELS):
            raise InvalidArgument(f"No volume can be mounted at {path[:80]!r}: that is the kernel's or the agent's.")
    if len(set(paths)) < len(paths):
        raise InvalidArgument("Two volumes cannot be mounted at one path.")
