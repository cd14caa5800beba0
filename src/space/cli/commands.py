"""A command in a sandbox, followed to its end from here: output by offset, signals, standard input, terminal size.

The command does not depend on our connection, and its output is kept with offsets. So when the stream breaks (a proxy
or the worker was restarted), it is opened again from the last offset, and nothing is lost or shown twice.

What a sandbox answers is what its root user wants it to be: it is checked before anything is made of it.
"""

import asyncio
import contextlib
import dataclasses
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Annotated, Literal

import pydantic

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


_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_Offset = Annotated[int, pydantic.Field(ge=0)]


class _Output(pydantic.BaseModel):
    type: Literal["stdout", "stderr", "pty"]
    offset: _Offset
    data: pydantic.Base64Bytes


class _Gap(pydantic.BaseModel):
    type: Literal["gap"]
    offset: _Offset
    next_offset: _Offset


class _Ended(pydantic.BaseModel):
    type: Literal["exit"]
    code: Annotated[int, pydantic.Field(ge=0, le=255)] | None
    signal: str | None
    timed_out: bool = False


_Event = Annotated[_Output | _Gap | _Ended, pydantic.Field(discriminator="type")]
_EVENT: pydantic.TypeAdapter[_Output | _Gap | _Ended] = pydantic.TypeAdapter(_Event)
_TYPES = ("stdout", "stderr", "pty", "gap", "exit")


def _event(found: Json) -> _Output | _Gap | _Ended | None:
    """Return an event of a command; None for one of another type. Raises Unavailable where it makes no sense."""
    if found.get("type") not in _TYPES:
        return None
    try:
        return _EVENT.validate_python(found)
    except pydantic.ValidationError as error:
        raise _not_an_agent() from error


def _not_an_agent() -> Unavailable:
    return Unavailable("The sandbox does not answer as an agent does; a program in it may have taken its place.")


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
                match _event(event):
                    case _Output() as output:
                        self._offset = output.offset + len(output.data)
                        write(output.type, output.data)
                    case _Gap() as gap:
                        self._offset = gap.next_offset
                        lost = gap.next_offset - gap.offset
                        write("gap", f"{lost} bytes of output were dropped: more than is kept".encode())
                    case _Ended() as ended:
                        return Exit(ended.code, ended.signal, ended.timed_out)
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
                self._id = response.headers.get("x-command-id", "")
                if not _ID.fullmatch(self._id):  # it becomes part of a path that is asked for with the user's key
                    raise _not_an_agent()
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
