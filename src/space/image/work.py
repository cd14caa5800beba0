"""What the steps of a build share: the log, programs that cannot outlive us, a lock between builds.

A long program is started so that the kernel ends it, with all it started, when this process dies, even by SIGKILL: a
signal at the parent's death (prctl(2), PR_SET_PDEATHSIG), a process namespace whose members die with its first
process, and a mount namespace that takes the program's mounts with it.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

from space.host import command
from space.model.errors import BuildFailed, SpaceError, StorageFull

Log = Callable[[str], None]
"""Takes one line of a build's log."""

_CONTAINED = (
    "setpriv", "--pdeathsig", "KILL",
    "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--",
)  # fmt: skip
_LOCK_POLL_S = 0.1
_LAST_LINES = 12


async def stream(
    log: Log, *argv: str, timeout_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> None:
    """Run a program whose every process dies with us, and log its lines; raises CommandError as `command.lines`."""
    async with contextlib.aclosing(command.lines(*_CONTAINED, *argv, timeout_s=timeout_s, env=env, cwd=cwd)) as found:
        async for line in found:
            if line.strip():
                log(line)


@contextlib.asynccontextmanager
async def exclusive(path: Path, log: Log) -> AsyncGenerator[None]:
    """Hold a lock file against every other process and task (flock(2)); the kernel gives it back if we die."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        told = False
        while not _try_lock(descriptor):
            if not told:
                log("Waiting for another build to end.")
                told = True
            await asyncio.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def explained(step: str, error: Exception, area: Path) -> SpaceError:
    """Return the error that a user can act on for what went wrong in a step that works in `area`."""
    if isinstance(error, SpaceError):
        return error
    if isinstance(error, OSError) and error.errno == errno.EDQUOT:
        return StorageFull(f"Step {step!r}: the quota of {area} is used up. Raise it and build again.")
    text = error.stderr if isinstance(error, command.CommandError) else str(error)
    if (isinstance(error, OSError) and error.errno == errno.ENOSPC) or os.strerror(errno.ENOSPC) in text:
        return StorageFull(
            f"Step {step!r} ran out of room on the host's own disk, where {area} is, or in the disk area inside it; "
            "`space doctor` shows both, and what to do. Then build again."
        )
    last = "\n".join(text.strip().splitlines()[-_LAST_LINES:])
    if isinstance(error, command.CommandError) and error.status is None:
        last += "\n(it did not end in its time)"
    return BuildFailed(f"Step {step!r} failed. {_cure(text)} Its last lines:\n{last}")


_OFFLINE = (
    "Could not resolve",
    "Temporary failure resolving",
    "Could not connect",
    "Failed to fetch",
    "Cannot initiate",
)


def _cure(text: str) -> str:
    if any(sign in text for sign in _OFFLINE):
        return (
            "Debian's package archive was not reached: check the network and the host's apt sources, then build again."
        )
    return "Cure what it says and build again; finished steps are kept."
