"""Start a VMM in its jail and hold it: its own pid without a race, in its control group before its first instruction.

`bwrap` stays beside the VMM as its parent and ends with its status; it is held too, for that status alone.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from space.host import daemon
from space.host.process import ProcessRef, Watched, start_time
from space.vmm.driver import VmmError

_START_S = 15.0
_LOG_BYTES = 64 * 1024
_OPEN_FILES = 256
"""A VMM with one disk and one network device holds about 30 descriptors."""
_OOM_SCORE = "500"
"""When the host runs out of memory a VM goes before our daemons and the host's."""


class Log:
    """What a VMM printed, bounded: a named pipe that the VMM itself holds open, so that it survives us.

    A guest can make a VMM print without end; what no longer fits (64 KiB) is dropped, because the writing end does not
    block. It is read when the VMM has ended, or failed to start.
    """

    def __init__(self, path: Path, *, make: bool) -> None:
        if make:
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
        # read and write: the pipe and what is in it stay for as long as anybody, the VMM too, has it open
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not stat.S_ISFIFO(os.fstat(self.fd).st_mode):
            self.close()
            raise VmmError(f"{path} is not a named pipe")

    def tail(self, lines: int = 5) -> str:
        """Take out what was printed and return its last lines as one; empty after `close`."""
        if self.fd < 0:
            return ""
        try:
            text = os.read(self.fd, _LOG_BYTES).decode(errors="replace")
        except BlockingIOError:
            return ""
        return " | ".join(printable(text).splitlines()[-lines:])

    def close(self) -> None:
        """Let go of the pipe."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def printable(text: str) -> str:
    """Return text of a guest or VMM without what would steer a terminal."""
    return "".join(char for char in text if char.isprintable() or char in "\n\t")


@dataclasses.dataclass(frozen=True, slots=True)
class Launched:
    """A VMM and the wrapper whose exit status is the VMM's; None where that is another process's child."""

    vmm: Watched
    wrapper: Watched | None


async def _read_pid(info: int) -> int:
    """Read the pid that bwrap tells. Raises ProcessLookupError when it ended without."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=4096)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(info, "rb"))
    try:
        told = json.loads(await reader.readuntil(b"}"))
        return int(told["child-pid"])
    except asyncio.IncompleteReadError:
        raise ProcessLookupError from None
    finally:
        transport.close()


def _hold(pid: int, parent: int) -> Watched:
    """Return a child of `parent` watched. Raises ProcessLookupError when it is gone or the pid is another's now."""
    pidfd = os.pidfd_open(pid)
    started = start_time(pid)
    if started is None or _parent(pid) != parent:
        os.close(pidfd)
        raise ProcessLookupError
    return Watched(ProcessRef(pid, started), pidfd)


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


async def launch(
    jailed: Callable[[int, int], tuple[str, ...]],
    *,
    log: Log,
    pass_fds: Sequence[int],
    settle: Callable[[int], None],
    open_files: int = _OPEN_FILES,
) -> Launched:
    """Start a VMM; `jailed(info_fd, block_fd)` gives its argv.

    `settle(pid)` is called for the wrapper and then for the VMM before that runs, to put them where they belong.
    Raises VmmError with what was printed; then nothing is left running.
    """
    with contextlib.ExitStack() as ours:
        info_read, info_write = os.pipe2(os.O_CLOEXEC)
        block_read, block_write = os.pipe2(os.O_CLOEXEC)
        go = ours.enter_context(os.fdopen(block_write, "wb", buffering=0))
        with os.fdopen(info_write, "wb"), os.fdopen(block_read, "rb"):
            wrapper = daemon.spawn(
                jailed(info_write, block_read),
                log=log.fd,
                pass_fds=(*pass_fds, info_write, block_read),
                open_files=open_files,
            )
        vmm: Watched | None = None
        try:
            async with asyncio.timeout(_START_S):
                pid = await _read_pid(info_read)
            vmm = _hold(pid, wrapper.ref.pid)
            for member in (wrapper.ref.pid, pid):
                settle(member)
                with contextlib.suppress(FileNotFoundError):
                    Path(f"/proc/{member}/oom_score_adj").write_text(_OOM_SCORE)
            go.write(b"1")
        except TimeoutError:
            await _abort(wrapper, vmm)
            raise VmmError(f"the jail was not there after {_START_S:g} s: {log.tail()}") from None
        except (ProcessLookupError, BrokenPipeError):
            await _abort(wrapper, vmm)
            raise VmmError(f"the jail could not be made: {log.tail()}") from None
        except BaseException:
            await _abort(wrapper, vmm)
            raise
    return Launched(vmm, wrapper)


async def _abort(wrapper: Watched, vmm: Watched | None) -> None:
    """End a half-made VMM. It would start once nobody holds the other end of its pipe, so it goes before that."""
    if wrapper.alive:
        os.killpg(wrapper.ref.pid, signal.SIGKILL)  # not yet reaped, so the number is still its group's
    if vmm is not None:
        vmm.send(signal.SIGKILL)
        await vmm.wait()
    await wrapper.wait()
