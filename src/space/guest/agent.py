"""Talk to the agent of one guest on its internal port, from a socket made inside the slot's namespace.

Every byte that comes back is the guest's: answers are bounded in size and time and parsed by h11, and nothing in them
decides more than whether this one sandbox is up.
"""

import asyncio
import contextlib
import time
from pathlib import Path

import h11
import pydantic

from space.host.netns import tcp_socket
from space.wire.agent import AgentInit, AgentReady
from space.wire.gateway import AGENT_INTERNAL_PORT

GUEST_ADDRESS = "169.254.0.21"
_MAX_ANSWER_BYTES = 64 * 1024
_ATTEMPT_S = 5.0
_CONNECT_S = 0.1
"""Short: a SYN sent before the guest's network is up is lost, and the kernel would repeat it only after a second."""
_POLL_S = 0.02


class AgentError(Exception):
    """The agent answered, and not as an agent should; trying again will not help."""


async def _request(netns: Path, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    loop = asyncio.get_running_loop()
    raw = tcp_socket(netns)
    try:
        async with asyncio.timeout(_CONNECT_S):
            await loop.sock_connect(raw, (GUEST_ADDRESS, AGENT_INTERNAL_PORT))
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_ANSWER_BYTES)
        headers = [("host", "agent"), ("content-length", str(len(body))), ("connection", "close")]
        request = connection.send(h11.Request(method=method, target=path, headers=headers))
        await loop.sock_sendall(raw, (request or b"") + (connection.send(h11.Data(data=body)) or b""))
        status, answer = 0, bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await loop.sock_recv(raw, 65536))
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


async def initialise(netns: Path, init: AgentInit) -> AgentReady:
    """Tell the agent who it is, trying again until it answers; put a deadline around it.

    A guest that is still booting refuses or drops connections: that is waited out. An agent that answers with an error
    raises AgentError. The clock that is told is read anew for each attempt.
    """
    while True:
        body = init.model_copy(update={"time_unix_ns": time.time_ns()}).model_dump_json().encode()
        with contextlib.suppress(OSError, TimeoutError, h11.RemoteProtocolError):
            async with asyncio.timeout(_ATTEMPT_S):
                status, answer = await _request(netns, "POST", "/init", body)
            if status != 200:
                raise AgentError(f"The agent refused its initialisation with {status}: {answer[:300]!r}")
            try:
                return AgentReady.model_validate_json(answer)
            except pydantic.ValidationError as error:
                raise AgentError("The agent's answer to its initialisation makes no sense.") from error
        await asyncio.sleep(_POLL_S)
