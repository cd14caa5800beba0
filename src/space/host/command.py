"""Run a program and wait for it: argv not strings, a deadline, and the whole process group dead before returning.

No shell anywhere. Scripts for a tool go on its standard input (`ip -batch -`, `nft -f -`).
"""

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from space.settings import search_path

_KEEP_BYTES = 64 * 1024
_LINE_BYTES = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Completed:
    """What a program left: its exit status (negative = killed by that signal) and both outputs."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str


class CommandError(Exception):
    """A program failed or ran out of time. For our log; translate before it reaches a user."""

    def __init__(self, argv: tuple[str, ...], status: int | None, stderr: str) -> None:
        self.argv, self.status, self.stderr = argv, status, stderr
        how = "ran out of time" if status is None else f"exited with {status}"
        super().__init__(f"{' '.join(argv)} {how}: {stderr.strip()[-2000:]}")


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    return {"PATH": search_path(), "LC_ALL": "C.UTF-8", "HOME": "/root", **(extra or {})}


def in_netns(netns: Path | None, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Prefix `argv` so that it runs in a network namespace.

    `nsenter --net` keeps the mount namespace; `ip netns exec` would take a private copy of all mounts, which keeps loop
    devices busy.
    """
    return argv if netns is None else ("nsenter", f"--net={netns}", *argv)


async def _kill_group(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def run(
    *argv: str,
    stdin: bytes = b"",
    timeout_s: float = 30,
    netns: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> Completed:
    """Run a program to its end and return what it left.

    `netns` is the path of a network namespace to run it in. With `check`, an exit status other than 0 raises
    CommandError; a run over `timeout_s` always does. On any way out, cancellation too, its process group is dead.
    """
    full = in_netns(netns, argv)
    process = await asyncio.create_subprocess_exec(
        *full,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(env),
        cwd=cwd,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate(stdin)
    except TimeoutError:
        raise CommandError(full, None, f"no end after {timeout_s} s") from None
    finally:
        await _kill_group(process)
    done = Completed(full, process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))
    if check and done.status != 0:
        raise CommandError(full, done.status, done.stderr or done.stdout)
    return done


async def lines(
    *argv: str,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> AsyncGenerator[str]:
    """Run a long program and yield each line of its output (both streams merged) as it comes.

    Raises CommandError, with the last 64 KiB of output, on an exit status other than 0 or after `timeout_s`.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=_environment(env),
        cwd=cwd,
        start_new_session=True,
        limit=_LINE_BYTES,
    )
    assert process.stdout is not None
    tail = ""
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    raw = await process.stdout.readline()
            except TimeoutError:
                raise CommandError(argv, None, tail) from None
            if not raw:
                break
            line = raw.decode(errors="replace").rstrip("\n")
            tail = (tail + line + "\n")[-_KEEP_BYTES:]
            yield line
        status = await process.wait()
    finally:
        await _kill_group(process)
    if status != 0:
        raise CommandError(argv, status, tail)
