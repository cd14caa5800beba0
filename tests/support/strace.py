"""Kills a process at one of its steps: strace(1) lets SIGKILL arrive as it enters the n-th system call of a kind.

The call is not carried out. Only the main thread is followed: it is there that our processes write ledgers (`rename`,
`renameat2`), speak to VMMs (`sendto`, `sendmsg` with a descriptor), signal them (`pidfd_send_signal`) and start
programs (`vfork`).
"""

import asyncio
import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

ATTACH_S = 20.0

_SAYS_NOTHING = re.compile(
    r"""
    ,\ "\\0",\ 1,          # the event loop wakes itself
    | heartbeat           # on a watch
    | \\"query-            # of a VMM
    | ,\ "GET\             # of a guest
""",
    re.VERBOSE,
)
"""Sent by a process of ours without anything in the world being another afterwards."""


@dataclasses.dataclass(slots=True)
class Followed:
    """A process that is followed; `log` is what strace wrote, whole once it has let go."""

    log: Path
    _strace: asyncio.subprocess.Process

    async def killed(self, within_s: float) -> bool:
        """Wait until the process was killed at its step; False where it has not come to it in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._strace.wait()
        return self._strace.returncode is not None

    def calls(self) -> Counter[str]:
        """Return how often each kind of call was begun."""
        return Counter(re.findall(r"^(\w+)\(", self.log.read_text(), re.MULTILINE))

    def acts(self) -> dict[str, list[bool]]:
        """Return for each kind of call, in order, whether it changes anything: a record, a file, another process.

        Who is killed at a call that does not, leaves the same behind as one that is killed at the next that does.
        """
        found: dict[str, list[bool]] = {}
        for line in self.log.read_text().splitlines():
            if (call := re.match(r"(\w+)\(", line)) is not None:
                found.setdefault(call[1], []).append(_SAYS_NOTHING.search(line) is None)
        return found

    def last(self) -> str:
        """Return the last call, for whoever reads of a failure."""
        return next((line for line in reversed(self.log.read_text().splitlines()) if "(" in line), "")[:200]


@contextlib.asynccontextmanager
async def followed(pid: int, log: Path, *calls: str, kill_at: int | None = None) -> AsyncGenerator[Followed]:
    """Follow the calls of these kinds; with `kill_at`, kill the process at that one of each kind, counted from 1."""
    chosen = ",".join(calls)
    inject = [] if kill_at is None else ["-e", f"inject={chosen}:signal=KILL:when={kill_at}"]
    strace = await asyncio.create_subprocess_exec(
        "strace", "-o", str(log), "-p", str(pid), "-e", f"trace={chosen}", "-e", "signal=none", *inject,
        stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert strace.stderr is not None
        async with asyncio.timeout(ATTACH_S):
            line = await strace.stderr.readline()
        assert b"attached" in line, line
        yield Followed(log, strace)
    finally:
        with contextlib.suppress(ProcessLookupError):
            strace.terminate()
        await strace.wait()
