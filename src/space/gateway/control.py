"""The control API (wire/gateway.py): through it the worker, and only root, says which slots there are."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import fastapi
import uvicorn
from fastapi.responses import JSONResponse, StreamingResponse

from space.gateway.slots import SlotMap
from space.model.errors import InvalidArgument, SpaceError
from space.model.ids import SandboxId, is_id
from space.wire import gateway as wire
from space.wire.problem import MEDIA_TYPE, headers_of, to_problem

_HEARTBEAT_S = 1.0
_GRACE_S = 1


def _sandbox_id(text: str) -> SandboxId:
    if not is_id(text):
        raise InvalidArgument(f"{text!r} is not the id of a sandbox.")
    return SandboxId(text)


def _dial(entry: wire.SlotEntry) -> str:
    return f"{entry.address}:{entry.agent_port}"


async def _heartbeats() -> AsyncGenerator[str]:
    while True:
        yield '{"type":"heartbeat"}\n'
        await asyncio.sleep(_HEARTBEAT_S)


def application(slots: SlotMap) -> fastapi.FastAPI:
    """Return the API over this map."""
    app = fastapi.FastAPI(openapi_url=None)

    @app.exception_handler(SpaceError)
    async def problem(_request: fastapi.Request, error: SpaceError) -> JSONResponse:
        body = to_problem(error).model_dump()
        return JSONResponse(body, error.status, headers_of(error), media_type=MEDIA_TYPE)

    @app.put("/v1/slots/{sandbox}", status_code=204)
    async def put_slot(sandbox: str, entry: wire.SlotEntry) -> None:
        slots.put(_sandbox_id(sandbox), _dial(entry))

    @app.delete("/v1/slots/{sandbox}", status_code=204)
    async def delete_slot(sandbox: str) -> None:
        slots.remove(_sandbox_id(sandbox))

    @app.put("/v1/slots", status_code=204)
    async def put_slots(wanted: wire.SlotMap) -> None:
        slots.replace({_sandbox_id(sandbox): _dial(entry) for sandbox, entry in wanted.slots.items()})

    @app.get("/v1/watch")
    async def watch() -> StreamingResponse:
        return StreamingResponse(_heartbeats(), media_type="application/x-ndjson")

    return app


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to main()."""
        yield


def bind(path: Path) -> socket.socket:
    """Return a socket at `path` that only its owner and root may connect to; a file of an earlier process is replaced.

    uvicorn is not asked to bind: it would make the socket 0666.
    """
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    bound.bind(str(path))
    path.chmod(0o600)  # nobody can connect before listen()
    return bound


async def serve(path: Path, slots: SlotMap, stop: asyncio.Event) -> None:
    """Serve the control API on a unix socket until `stop` is set."""
    config = uvicorn.Config(
        application(slots), lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE_S
    )
    server = _Server(config)

    async def end() -> None:
        await stop.wait()
        server.should_exit = True

    with bind(path) as listener:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]))
            group.create_task(end())
