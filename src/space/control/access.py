"""Who is asking: the API key of a request, and the sandbox it is about, both from a cache of a moment."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from space.control import keys, lifecycle
from space.control.live_tokens import LiveTokens
from space.control.plane import Plane
from space.control.recent import Recent
from space.model.errors import Unauthorized, Unavailable
from space.model.ids import ProjectId, SandboxId
from space.model.key import ApiKey
from space.model.sandbox import Sandbox
from space.store import sandboxes
from space.store.notices import Channel

CALLER = "space.caller"
"""Where a surface finds the caller's ApiKey in the scope of an authenticated request."""

_KEEP_EVERY_S, _IN_USE_S = 0.3, 10.0
"""Well within the age that a key is believed for; and how long after its last request a key is in use."""

_MISSING = f"An API key is needed: send `X-API-KEY: e2b_...` or `Authorization: Bearer e2b_...`. {keys.WHERE}"


def shown_key(headers: Mapping[bytes, bytes]) -> str:
    """Return the key that a request shows (header names in lower case), whatever it is worth; empty without one."""
    text = headers.get(b"x-api-key", b"").decode("latin-1").strip()
    if text:
        return text
    scheme, _, rest = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else ""


class Access:
    """Answers both questions; `following` keeps the answers fresh while it is entered."""

    def __init__(self, plane: Plane) -> None:
        async def read_key(text: str) -> ApiKey:
            return await keys.authenticate(plane.db, text)

        async def read_sandbox(sandbox: SandboxId) -> Sandbox | None:
            return await sandboxes.get(plane.db, sandbox)

        self._plane = plane
        self._keys = Recent(read_key)
        self._sandboxes = Recent(read_sandbox)
        self._tokens = LiveTokens(plane.db)

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Drop what the database tells has changed."""

        def key_changed(_: str | None) -> None:
            self._keys.drop(None)

        def sandbox_changed(ident: str | None) -> None:
            self._sandboxes.drop(None if ident is None else SandboxId(ident))

        notices = self._plane.notices
        with notices.listening(Channel.KEY, key_changed), notices.listening(Channel.SANDBOX, sandbox_changed):
            yield

    async def keep_keys(self) -> None:
        """Read the keys that are in use again before they are too old, for ever: else requests would wait for that."""
        while True:
            await asyncio.sleep(_KEEP_EVERY_S)
            using, began = self._keys.in_use(_IN_USE_S), time.monotonic()
            if not using:
                continue
            try:
                valid = await keys.still_valid(self._plane.db, using)
            except Unavailable:  # whoever asks is told
                continue
            for text in using:
                if text in valid:
                    self._keys.keep(text, valid[text], began)
                else:
                    self._keys.drop(text)

    async def caller(self, headers: Mapping[bytes, bytes]) -> ApiKey:
        """Return the valid key that a request shows (header names in lower case); raises Unauthorized."""
        text = shown_key(headers)
        if not text:
            raise Unauthorized(_MISSING)
        return await self._keys.get(text)

    async def current(self, ident: SandboxId) -> Sandbox | None:
        """Return a sandbox's row of any project, at most a moment old; one that cannot be reached is read now.

        So whoever was told that it is awake, or asleep, finds it so, even where that news is still on its way here.
        """
        row = await self._sandboxes.get(ident)
        if row is not None and lifecycle.why_unreachable(row, row.project, ident) is not None:
            self._sandboxes.drop(ident)
            row = await self._sandboxes.get(ident)
        return row

    async def awake(self, row: Sandbox) -> Sandbox:
        """Return the row of a sandbox once it is awake, where it sleeps and a request may wake it.

        Raises what keeps it from that.
        """
        if not lifecycle.wakes(row):
            return row
        woken = await lifecycle.wake(self._plane, row)
        self._sandboxes.drop(row.id)
        return woken

    def used(self, ident: SandboxId) -> None:
        """Note that a sandbox is used now."""
        self._plane.activity.touch(ident)

    async def reachable(self, ident: SandboxId, project: ProjectId) -> Sandbox | None:
        """Return the row of a project's sandbox that a request is for, awake if it may be; that counts as using it."""
        row = await self.current(ident)
        if row is None or row.project != project:
            return row
        row = await self.awake(row)
        self.used(ident)
        return row

    async def signer(self, which: Callable[[Iterable[tuple[SandboxId, str]]], SandboxId | None]) -> SandboxId | None:
        """Return the sandbox that `which` picks by its token out of all that live, of any project."""
        return await self._tokens.find(which)
