"""Identity of a process: pid and start time together, since a pid alone can be reused.

Signals go through a pidfd that was opened and then checked against the start time, never through a bare pid.
"""

import asyncio
import contextlib
import ctypes
import dataclasses
import os
import resource
import select
import signal
from pathlib import Path

_PR_SET_DUMPABLE = 4
_libc = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process on this boot of the host. `start_time` is field 22 of /proc/<pid>/stat, in clock ticks since boot."""

    pid: int
    start_time: int


def start_time(pid: int) -> int | None:
    """Return the start time of a live process, or None when there is none (a zombie counts as none)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    """Return the kernel's id of this boot: a record of a process is void under another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Watched:
    """A live process held by its pidfd, child of ours or not."""

    def __init__(self, ref: ProcessRef, pidfd: int) -> None:
        self.ref = ref
        self._pidfd = pidfd
        self._exited = asyncio.Event()
        self.status: int | None = None
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        with contextlib.suppress(ChildProcessError):  # not our child: the status is its parent's to know
            info = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
            if info is not None:
                self.status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        os.close(self._pidfd)
        self._pidfd = -1
        self._exited.set()

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        if self._exited.is_set():
            return False
        return not select.select([self._pidfd], [], [], 0)[0]

    async def wait(self) -> int | None:
        """Wait for its end; return the exit status (negative = signal), or None where it was not our child."""
        await self._exited.wait()
        return self.status

    def send(self, number: signal.Signals) -> None:
        """Send a signal to exactly this process; nothing happens when it is gone."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def stop(self, grace_s: float) -> None:
        """Ask it to end (SIGTERM), and after `grace_s` make it (SIGKILL). Returns when it is gone."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._exited.wait()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self._exited.wait()

    def release(self) -> None:
        """Stop watching and leave it alive."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


def watch(ref: ProcessRef) -> Watched | None:
    """Open a pidfd for a recorded process; None when it is gone or the pid is another's now."""
    try:
        pidfd = os.pidfd_open(ref.pid)
    except (ProcessLookupError, OSError):
        return None
    if start_time(ref.pid) != ref.start_time:
        os.close(pidfd)
        return None
    return Watched(ref, pidfd)


def uid_processes(uids: range) -> list[ProcessRef]:
    """Return the live processes whose real uid is in `uids`, zombies left out."""
    found: list[ProcessRef] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        uid = int(status.split("\nUid:\t", 1)[1].split("\t", 1)[0])
        started = start_time(int(entry.name)) if uid in uids else None
        if started is not None:
            found.append(ProcessRef(int(entry.name), started))
    return found


def keep_memory_private() -> None:
    """Turn off core dumps of this process and its being read by others of its uid (ptrace, /proc/<pid>/mem).

    The kernel makes a process dumpable again at exec, so each process does this itself, first thing in `main()`.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl")
