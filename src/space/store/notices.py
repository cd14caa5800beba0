"""What the database tells about changed rows: ids by LISTEN/NOTIFY, so that nobody who waits needs to poll.

A notice may be lost while the connection is down. So after each connect everything may have changed, and whoever waits
also looks again after a second.
"""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Callable, Iterator

from space.model.errors import Unavailable
from space.store.db import Database, Session
from space.telemetry import logger

RECHECK_S = 1.0
_RECONNECT_S = 0.2
_PROBE_S = 5


class Channel(enum.StrEnum):
    """The kinds of rows that tell."""

    SANDBOX = "space_sandbox"
    LAGGING = "space_lagging"
    """A sandbox's id, where its status has come to lag behind the wish and nobody holds it."""

    OPERATION = "space_operation"
    KEY = "space_key"
    BUILD = "space_build"
    EGRESS = "space_egress"
    """A sandbox's id, where events of its egress were stored."""


Listener = Callable[[str | None], None]
"""Called with the id of a changed row; None: any may have changed."""


class Notices:
    """Listens on one connection of its own and tells all who asked."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._listeners: dict[Channel, set[Listener]] = {channel: set() for channel in Channel}
        self._heard = True  # a loss is logged once, not for each attempt to get over it

    @contextlib.contextmanager
    def listening(self, channel: Channel, listener: Listener) -> Iterator[None]:
        """Call `listener` for each notice on `channel`. It must not wait."""
        self._listeners[channel].add(listener)
        try:
            yield
        finally:
            self._listeners[channel].discard(listener)

    @contextlib.contextmanager
    def changes(self, channel: Channel, ident: str) -> Iterator[asyncio.Event]:
        """Give an event that is set when the row `ident` may have changed."""
        changed = asyncio.Event()

        def listener(told: str | None) -> None:
            if told is None or told == ident:
                changed.set()

        with self.listening(channel, listener):
            yield changed

    def _tell(self, channel: Channel, ident: str | None) -> None:
        for listener in list(self._listeners[channel]):
            listener(ident)

    async def run(self) -> None:
        """Listen for ever; a lost connection is made anew."""
        while True:
            try:
                await self._listen()
            except Unavailable as error:
                if self._heard:
                    logger().warning("notices_lost", cause=repr(error.__cause__))
            self._heard = False
            await asyncio.sleep(_RECONNECT_S)

    async def _listen(self) -> None:
        async with self._db.session() as session, self._subscribed(session) as lost:
            while not lost.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PROBE_S):
                        await lost.wait()
                if not lost.is_set():
                    await session.execute("SELECT 1", timeout=_PROBE_S)  # a dead peer over TCP is silent

    @contextlib.asynccontextmanager
    async def _subscribed(self, session: Session) -> AsyncIterator[asyncio.Event]:
        lost = asyncio.Event()
        session.add_termination_listener(lambda _: lost.set())

        def on_notice(_: object, __: int, channel: str, payload: object) -> None:
            self._tell(Channel(channel), str(payload))

        for channel in Channel:
            await session.add_listener(channel, on_notice)
        self._heard = True
        for channel in Channel:
            self._tell(channel, None)
        yield lost
