"""Talk to the agent of one guest on its internal port, from a socket made inside the slot's namespace.

Every byte that comes back is the guest's: answers are bounded in size and time and parsed by h11, and nothing in them
decides more than whether this one sandbox is up.
"""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TypeVar

import h11
import pydantic

from space.host.netns import tcp_socket
from space.wire.agent import AgentInit, AgentReady, FreezeWish, Frozen, GuestActivity, ReadyWish, ThawWish
from space.wire.gateway import AGENT_INTERNAL_PORT

GUEST_ADDRESS = "169.254.0.21"
_MAX_ANSWER_BYTES = 64 * 1024
_MAX_RECEIVED_BYTES = 4 * _MAX_ANSWER_BYTES
"""Of one connection: headers, interim answers and the body's framing included."""
_ATTEMPT_S = 5.0
_CONNECT_S = 0.1
"""Short: a SYN sent before the guest's network is up is lost, and the kernel would repeat it only after a second."""
_POLL_S = 0.02
_OK = 200
M = TypeVar("M", bound=pydantic.BaseModel)


class _Done(pydantic.BaseModel):
    """An answer that says no more than that it was done."""


class AgentError(Exception):
    """The agent answered, and not as an agent should; trying again will not help."""


class AgentSilent(Exception):
    """The agent gave no answer in time."""


class _NotConnected(OSError):
    """The guest did not take the connection within _CONNECT_S; nothing was said to it."""


async def initialise(netns: Path, init: AgentInit) -> AgentReady:
    """Tell the agent who it is, trying again until it answers; put a deadline around it.

    A guest that is still booting refuses or drops connections: that is waited out. An agent that answers with an error
    raises AgentError. The clock that is told is read anew for each attempt.
    """
    while True:
        with contextlib.suppress(OSError, TimeoutError, h11.RemoteProtocolError):
            async with asyncio.timeout(_ATTEMPT_S):
                told = init.model_copy(update={"time_unix_ns": time.time_ns()})
                status, answer = await _request(netns, "POST", "/init", told.model_dump_json().encode())
            return _understood(AgentReady, status, answer)
        await asyncio.sleep(_POLL_S)


async def freeze(netns: Path, wish: FreezeWish, timeout_s: float) -> Frozen:
    """Stop all user code in the guest, after its hook; raises AgentError, AgentSilent."""
    return _understood(Frozen, *await _ask(netns, "POST", "/freeze", wish, timeout_s))


async def thaw(netns: Path, wish: ThawWish, timeout_s: float) -> None:
    """Let user code run again where a freeze came to nothing; raises AgentError, AgentSilent."""
    _understood(_Done, *await _ask(netns, "POST", "/thaw", wish, timeout_s))


async def ready(netns: Path, check_timeout_s: float) -> None:
    """Wait until the image's own check succeeds, if it has one.

    Raises AgentError where it has not succeeded after `check_timeout_s`, AgentSilent.
    """
    wish = ReadyWish(timeout_s=check_timeout_s)
    _understood(_Done, *await _ask(netns, "POST", "/ready", wish, check_timeout_s + _ATTEMPT_S))


async def warm(netns: Path, timeout_s: float) -> None:
    """Make the next command quick: the agent runs one like it. Raises AgentError, AgentSilent."""
    _understood(_Done, *await _ask(netns, "POST", "/warm", None, timeout_s))


async def activity(netns: Path, timeout_s: float) -> GuestActivity:
    """Ask what is going on in the guest; raises AgentError, AgentSilent."""
    return _understood(GuestActivity, *await _ask(netns, "GET", "/activity", None, timeout_s))


async def _ask(
    netns: Path, method: str, path: str, wish: pydantic.BaseModel | None, timeout_s: float
) -> tuple[int, bytes]:
    body = b"" if wish is None else wish.model_dump_json().encode()
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                with contextlib.suppress(_NotConnected):
                    return await _request(netns, method, path, body)
    except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
        raise AgentSilent(f"The agent did not answer {path} within {timeout_s:g} s.") from error


def _understood(model: type[M], status: int, answer: bytes) -> M:
    if status // 100 != _OK // 100:
        raise AgentError(f"The agent refused with {status}: {answer[:300]!r}")
    try:
        return model.model_validate_json(answer or b"{}")
    except pydantic.ValidationError as error:
        raise AgentError("The agent's answer makes no sense.") from error


async def _request(netns: Path, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    loop = asyncio.get_running_loop()
    raw = tcp_socket(netns)
    try:
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.sock_connect(raw, (GUEST_ADDRESS, AGENT_INTERNAL_PORT))
        except TimeoutError as error:
            raise _NotConnected from error
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_ANSWER_BYTES)
        headers = [("host", "agent"), ("content-length", str(len(body))), ("connection", "close")]
        request = connection.send(h11.Request(method=method, target=path, headers=headers))
        await loop.sock_sendall(raw, (request or b"") + (connection.send(h11.Data(data=body)) or b""))
        status, answer, received = 0, bytearray(), 0
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await loop.sock_recv(raw, 65536)
                received += len(data)
                if received > _MAX_RECEIVED_BYTES:  # interim answers without end would hold up the event loop
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
    finally:
        raw.close()
