"""A command in a sandbox, followed to its end from here: output by offset, signals, standard input, terminal size.

The command does not depend on our connection, and its output is kept with offsets. So when the stream breaks (a proxy
or the worker was restarted), it is opened again from the last offset, and nothing is lost or shown twice.
"""

import asyncio
import base64
import contextlib
import dataclasses
import signal
from collections.abc import AsyncGenerator, AsyncIterable, Callable

from space.cli.client import Api, Json, ndjson
from space.model.errors import Conflict, InvalidArgument, NotFound, SpaceError, TooLarge, Unauthorized, Unavailable

_PATIENCE_S = 30.0
"""How long a broken stream is tried again without a single event."""
_AGAIN_S = 0.2
_FINAL = (Conflict, InvalidArgument, NotFound, TooLarge, Unauthorized)
"""Answers that trying again cannot change."""

TIMED_OUT_STATUS = 124
"""What `timeout(1)` exits with."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended: `code`, or `signal` (a name such as SIGKILL)."""

    code: int | None
    signal: str | None
    timed_out: bool

    @property
    def status(self) -> int:
        """The exit status that a shell would give it: 128 + n for a signal, 124 for its timeout."""
        if self.timed_out:
            return TIMED_OUT_STATUS
        if self.signal is not None:
            try:
                return 128 + signal.Signals[self.signal]
            except KeyError:
                return 128
        return self.code if self.code is not None else 1


class Command:
    """A command that is started once and followed once. `started` is set when the sandbox has given it an id."""

    def __init__(self, api: Api, sandbox: str) -> None:
        self._api = api
        self._base = f"/v1/sandboxes/{sandbox}/commands"
        self._id = ""
        self._offset = 0
        self.started = asyncio.Event()

    async def run(self, body: Json, write: Callable[[str, bytes], None]) -> Exit:
        """Start it with `body` (see POST commands) and return how it ended.

        `write(stream, data)` gets each piece of output; `stream` is stdout, stderr or pty, and `gap` with a message
        where output was dropped because nobody read it in time.
        """
        async with contextlib.aclosing(self._events(body)) as events:
            async for event in events:
                match event["type"]:
                    case "stdout" | "stderr" | "pty":
                        data = base64.b64decode(event["data"])
                        self._offset = event["offset"] + len(data)
                        write(event["type"], data)
                    case "gap":
                        lost = event["next_offset"] - event["offset"]
                        self._offset = event["next_offset"]
                        write("gap", f"{lost} bytes of output were dropped: more than is kept".encode())
                    case "exit":
                        return Exit(event["code"], event["signal"], event.get("timed_out", False))
        raise Unavailable("The command's stream ended without its exit.")

    async def send_signal(self, name: str) -> None:
        """Send a signal to it; nothing happens when it has ended."""
        await self.started.wait()
        with contextlib.suppress(Conflict, NotFound):
            await self._api.call("POST", f"{self._base}/{self._id}/signal", body={"signal": name}, timeout_s=10)

    async def resize(self, columns: int, rows: int) -> None:
        """Tell its terminal's size; nothing happens when it has ended."""
        await self.started.wait()
        with contextlib.suppress(SpaceError):
            size = {"cols": columns, "rows": rows}
            await self._api.call("POST", f"{self._base}/{self._id}/resize", body=size, timeout_s=10)

    async def feed(self, chunks: AsyncIterable[bytes]) -> None:
        """Write `chunks` to its standard input and close it; ends early when the command reads no more."""
        await self.started.wait()
        path = f"{self._base}/{self._id}/stdin"
        with contextlib.suppress(Conflict, NotFound):
            async for chunk in chunks:
                await self._api.call("POST", path, content=chunk, timeout_s=None)
            await self._api.call("POST", path, params={"eof": "true"}, content=b"", timeout_s=None)

    async def _events(self, body: Json) -> AsyncGenerator[Json]:
        """Yield its events, over as many connections as it takes; the last is the exit."""
        try:
            async with self._api.stream("POST", self._base, body=body) as response:
                self._id = response.headers["x-command-id"]
                self.started.set()
                async for event in ndjson(response):
                    yield event
        except Unavailable:
            if not self.started.is_set():
                raise
        clock = asyncio.get_running_loop().time
        give_up = clock() + _PATIENCE_S
        while True:
            try:
                async with contextlib.aclosing(self._events_from_offset()) as events:
                    async for event in events:
                        give_up = clock() + _PATIENCE_S
                        yield event
            except _FINAL:
                raise
            except SpaceError:
                if clock() > give_up:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def _events_from_offset(self) -> AsyncGenerator[Json]:
        params = {"from": self._offset}
        async with self._api.stream("GET", f"{self._base}/{self._id}/output", params=params) as response:
            async for event in ndjson(response):
                yield event
