"""Requests that wait for a person: told as events, answered through the control API, refused when nobody does."""

import asyncio
import collections

from space.gateway.audit import MAX_PATH, Audit
from space.gateway.guests import Guest
from space.model.errors import NotFound
from space.model.ids import SandboxId
from space.model.policy import Request

MAX_HELD = 16
"""Requests of one sandbox that wait at once; a person has not more attention, and each holds a connection open."""


class Asking:
    """The questions that are open."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._open: dict[tuple[SandboxId, int], asyncio.Future[bool]] = {}
        self._held: collections.Counter[SandboxId] = collections.Counter()

    def full(self, sandbox: SandboxId) -> bool:
        """Tell whether too many questions of a sandbox are open for another one."""
        return self._held[sandbox] >= MAX_HELD

    def open(self, guest: Guest, request: Request, wait_s: float) -> int:
        """Put a question into the events; return its number, for `answer_to`."""
        return self._audit.note(
            "ask",
            guest.sandbox,
            generation=guest.generation,
            protocol=request.protocol,
            name=request.host,
            port=request.port,
            method=request.method,
            path=request.path.partition("?")[0][:MAX_PATH],
            wait_s=wait_s,
        )

    async def answer_to(self, guest: Guest, number: int, wait_s: float) -> bool:
        """Wait for the answer to a question; False when nobody gives one in time."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._open[guest.sandbox, number] = answer
        self._held[guest.sandbox] += 1
        try:
            async with asyncio.timeout(wait_s):
                return await answer
        except TimeoutError:
            return False
        finally:
            del self._open[guest.sandbox, number]
            self._held[guest.sandbox] -= 1
            if not self._held[guest.sandbox]:
                del self._held[guest.sandbox]

    def answer(self, sandbox: SandboxId, number: int, *, allow: bool) -> None:
        """Answer a question by the number of its event; raises NotFound when it is not open any more."""
        waiting = self._open.get((sandbox, number))
        if waiting is None or waiting.done():
            raise NotFound("This request does not wait any more.")
        waiting.set_result(allow)
