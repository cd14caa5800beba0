"""The control API (wire/gateway.py): through it the worker, and only root, says which slots there are."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from space.gateway.slots import SlotMap
from space.model.errors import InvalidArgument
from space.model.ids import SandboxId, is_id
from space.wire import gateway as wire
from space.wire.serving import answer_with_problems, bind_unix, server

_HEARTBEAT_S = 1.0
_GRACE_S = 1.0


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


def application(slots: SlotMap) -> FastAPI:
    """Return the API over this map."""
    app = FastAPI(openapi_url=None)
    answer_with_problems(app)

    @app.put("/v1/slots/{sandbox}")
    async def put_slot(sandbox: str, entry: wire.SlotEntry) -> wire.Settled:
        slots.put(_sandbox_id(sandbox), _dial(entry))
        return wire.Settled()

    @app.delete("/v1/slots/{sandbox}", status_code=204)
    async def delete_slot(sandbox: str) -> None:
        slots.remove(_sandbox_id(sandbox))

    @app.put("/v1/slots")
    async def put_slots(wanted: wire.SlotMap) -> wire.SettledMap:
        slots.replace({_sandbox_id(sandbox): _dial(entry) for sandbox, entry in wanted.slots.items()})
        return wire.SettledMap(slots={sandbox: wire.Settled() for sandbox in wanted.slots})

    @app.get("/v1/watch")
    async def watch() -> StreamingResponse:
        return StreamingResponse(_heartbeats(), media_type="application/x-ndjson")

    return app


async def serve(path: Path, slots: SlotMap, stop: asyncio.Event) -> None:
    """Serve the control API on a unix socket (0600: root may always connect) until `stop` is set."""
    serving = server(application(slots), grace_s=_GRACE_S)

    async def end() -> None:
        await stop.wait()
        serving.should_exit = True

    with bind_unix(path, mode=0o600) as listener:
        async with asyncio.TaskGroup() as group:
            group.create_task(serving.serve(sockets=[listener]))
            group.create_task(end())
