"""What a template build asks of the agent in its machine, beside commands: copy files, make users, finish the image.

As in `guest.agent`: a socket made inside the slot's namespace, answers bounded, and nothing in them is believed more
than that this one build went on or failed.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import urlencode

import h11
import pydantic

from space.guest.agent import AgentError, AgentSilent
from space.guest.dial import GUEST_ADDRESS
from space.host.netns import tcp_socket
from space.wire.gateway import AGENT_INTERNAL_PORT

_MAX_ANSWER_BYTES = 64 * 1024
_CHUNK_BYTES = 256 * 1024
_CONNECT_S = 5.0
_CALL_S = 60.0
_OK = 200
_STALL_S = 120.0
"""How long the guest may take no byte of an archive: it is writing what it has to its disk."""


class Refused(AgentError):
    """The agent did not do it; the text says why, in words for whoever wrote the build."""


class _Problem(pydantic.BaseModel):
    code: str = pydantic.Field(max_length=100)
    detail: str = pydantic.Field(max_length=8000)


async def furnish(netns: Path) -> None:
    """Give an image that was made for containers what a machine has: a user, folders to mount on."""
    await _post(netns, "furnish", {})


async def make_user(netns: Path, name: str, *, sudo: bool) -> None:
    """Make a user unless there is one of this name or number."""
    await _post(netns, "user", {"name": name, "sudo": sudo})


async def make_workdir(netns: Path, path: str, user: str) -> None:
    """Make a folder and its parents unless it is there."""
    await _post(netns, "workdir", {"path": path, "user": user})


async def set_path(netns: Path, path: str) -> None:
    """Make login shells take this for PATH."""
    await _post(netns, "path", {"path": path})


async def finish(netns: Path, defaults: Mapping[str, object], start: str | None, ready: str | None) -> None:
    """Write what the template starts with: `user`, `workdir` and `env` of commands, and the two hooks."""
    await _post(netns, "finish", {"defaults": defaults, "start": start or "", "ready": ready or ""})


async def copy(netns: Path, archive: Path, query: Mapping[str, str]) -> None:
    """Unpack an archive (tar, gzipped or not) as the query says: source, target, workdir, user, owner, mode."""
    size = archive.stat().st_size
    with archive.open("rb") as file:

        async def body(send: _Send) -> None:
            while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                await send(chunk)

        await _request(netns, f"/layer/copy?{urlencode(query)}", size, body, answer_s=_STALL_S * 5)


class _Send:
    """Sends a request's body, as far as the guest takes it."""

    def __init__(self, connection: h11.Connection, writer: asyncio.StreamWriter) -> None:
        self._connection, self._writer = connection, writer

    async def __call__(self, data: bytes) -> None:
        self._writer.write(self._connection.send(h11.Data(data=data)) or b"")
        async with asyncio.timeout(_STALL_S):
            await self._writer.drain()


_Body = Callable[[_Send], Awaitable[None]]


async def _post(netns: Path, what: str, content: Mapping[str, object]) -> None:
    text = json.dumps(content).encode()

    async def body(send: _Send) -> None:
        await send(text)

    await _request(netns, f"/layer/{what}", len(text), body, answer_s=_CALL_S)


async def _request(netns: Path, target: str, size: int, body: _Body, *, answer_s: float) -> None:
    """Send a request and wait until it was done. Raises Refused, AgentError, AgentSilent."""
    raw = tcp_socket(netns)
    try:
        async with asyncio.timeout(_CONNECT_S):
            await asyncio.get_running_loop().sock_connect(raw, (GUEST_ADDRESS, AGENT_INTERNAL_PORT))
        reader, writer = await asyncio.open_connection(sock=raw, limit=_MAX_ANSWER_BYTES)
    except (OSError, TimeoutError) as error:
        raw.close()
        raise AgentSilent("The agent takes no connection.") from error
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_ANSWER_BYTES)
    try:
        headers = [("host", "agent"), ("content-length", str(size)), ("connection", "close")]
        writer.write(connection.send(h11.Request(method="POST", target=target, headers=headers)) or b"")
        await body(_Send(connection, writer))
        connection.send(h11.EndOfMessage())
        async with asyncio.timeout(answer_s):
            status, answer = await _answer(connection, reader)
    except (OSError, TimeoutError, h11.ProtocolError) as error:
        raise AgentSilent(f"The agent did not do {target.partition('?')[0]}.") from error
    finally:
        writer.transport.abort()
    if status // 100 != _OK // 100:
        try:
            problem = _Problem.model_validate_json(answer)
        except pydantic.ValidationError as error:
            raise AgentError(f"The agent answered with {status} and no reason.") from error
        raise Refused(problem.detail)


async def _answer(connection: h11.Connection, reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, answer, received = 0, bytearray(), 0
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(65536)
            received += len(data)
            if received > 4 * _MAX_ANSWER_BYTES:
                raise AgentError("The agent's answer is too long.")
            connection.receive_data(data)
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            answer += event.data
            if len(answer) > _MAX_ANSWER_BYTES:
                raise AgentError("The agent's answer is too long.")
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return status, bytes(answer)
