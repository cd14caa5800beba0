"""What was decided, as events with a running number in a bounded ring; the worker reads it as a stream.

An event is bytes from the moment it happens, so that a busy hour costs memory once. A sandbox that makes more events
than a reader could want (a loop that is refused thousands of times a second) has the rest counted instead, so that it
does not push the others' events out of the ring.
"""

import asyncio
import collections
import datetime as dt
import itertools
import json
from collections.abc import AsyncGenerator

from space.model.ids import SandboxId, new_id

RING = 20_000
"""Events kept for a reader that is behind: some megabytes."""

_BURST, _PER_S = 5000.0, 1000.0
_SKIPPED_S = 1.0
MAX_PATH = 512
"""Characters of a path that are kept; queries are never kept."""


class _Allowance:
    """How many events one sandbox may still make, and how many it made beyond."""

    __slots__ = ("at_s", "left", "skipped", "skipped_since_s")

    def __init__(self, now_s: float) -> None:
        self.left, self.at_s = _BURST, now_s
        self.skipped, self.skipped_since_s = 0, 0.0

    def take(self, now_s: float) -> bool:
        self.left = min(_BURST, self.left + (now_s - self.at_s) * _PER_S)
        self.at_s = now_s
        if self.left < 1:
            if not self.skipped:
                self.skipped_since_s = now_s
            self.skipped += 1
            return False
        self.left -= 1
        return True


class Audit:
    """The ring. `boot` names this process: numbers begin again with each."""

    def __init__(self, size: int = RING) -> None:
        self.boot = new_id()
        self._ring: collections.deque[tuple[int, bytes]] = collections.deque()
        self._size = size
        self._last = self._dropped = 0
        self._grew = asyncio.Event()
        self._closed = False
        self._allowances: dict[SandboxId, _Allowance] = {}

    def note(self, kind: str, sandbox: SandboxId, **facts: object) -> int:
        """Keep an event; return its number, which is used up also where it is only counted.

        `facts` are fields of wire.EgressEvent; those that are None are left out.
        """
        now_s = asyncio.get_running_loop().time()
        allowance = self._allowances.setdefault(sandbox, _Allowance(now_s))
        if not allowance.take(now_s):
            if now_s - allowance.skipped_since_s > _SKIPPED_S:
                self._settle(sandbox, allowance)
            self._last += 1
            return self._last
        if allowance.skipped:
            self._settle(sandbox, allowance)
        return self._keep(kind, sandbox, facts)

    def forget(self, sandbox: SandboxId) -> None:
        """Drop what is counted for a sandbox that is gone."""
        self._allowances.pop(sandbox, None)

    def _settle(self, sandbox: SandboxId, allowance: _Allowance) -> None:
        count, allowance.skipped = allowance.skipped, 0
        self._keep("gap", sandbox, {"count": count, "why": "too many events of this sandbox to keep each"})

    def _keep(self, kind: str, sandbox: SandboxId, facts: dict[str, object]) -> int:
        self._last += 1
        event = {
            "type": kind,
            "boot": self.boot,
            "seq": self._last,
            "time": dt.datetime.now(dt.UTC).isoformat(),
            "sandbox": sandbox,
        }
        event.update((name, value) for name, value in facts.items() if value is not None)
        self._ring.append((self._last, json.dumps(event, separators=(",", ":")).encode() + b"\n"))
        if len(self._ring) > self._size:
            self._dropped = self._ring.popleft()[0]
        self._wake()
        return self._last

    def _wake(self) -> None:
        grew, self._grew = self._grew, asyncio.Event()
        grew.set()

    def close(self) -> None:
        """End every reader's stream once it has what there is, so that the server can stop."""
        self._closed = True
        self._wake()

    async def since(self, boot: str, after: int) -> AsyncGenerator[bytes]:
        """Yield the lines of events after number `after` of process `boot` (another's: from the oldest) until `close`.

        Where events fell out of the ring before they were read, a `gap` says how many.
        """
        at = after if boot == self.boot else 0
        while True:
            grew = self._grew
            if at < self._dropped:
                yield self._gap(at, self._dropped)
                at = self._dropped
            fresh = list(itertools.takewhile(lambda kept: kept[0] > at, reversed(self._ring)))  # noqa: B023 - used here
            if fresh:
                at = fresh[0][0]
                yield b"".join(line for _, line in reversed(fresh))
            elif self._closed:
                return
            else:
                await grew.wait()

    def _gap(self, after: int, dropped: int) -> bytes:
        gap = {
            "type": "gap",
            "boot": self.boot,
            "seq": dropped,
            "time": dt.datetime.now(dt.UTC).isoformat(),
            "count": dropped - after,
            "why": "not read in time",
        }
        return json.dumps(gap, separators=(",", ":")).encode() + b"\n"
