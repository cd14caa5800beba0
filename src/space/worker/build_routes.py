"""The part of the worker's API that is about builds (see wire/builds.py)."""

import contextlib
from collections.abc import AsyncGenerator

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.types import Send

from space.disk import uploads
from space.wire.builds import BuildSteps, StoredFiles
from space.worker.builder import Builder

NDJSON = "application/x-ndjson"


class _Closing(StreamingResponse):
    """A stream whose source is closed when its reader leaves, not only some time later."""

    async def stream_response(self, send: Send) -> None:
        assert isinstance(self.body_iterator, AsyncGenerator)
        async with contextlib.aclosing(self.body_iterator):
            await super().stream_response(send)


def add_routes(app: FastAPI, builder: Builder) -> None:
    """Add the routes."""
    layout = builder.host.layout

    @app.post("/v1/template-builds")
    async def build(wish: BuildSteps) -> StreamingResponse:
        async def lines() -> AsyncGenerator[str]:
            async with contextlib.aclosing(builder.build(wish)) as found:
                async for line in found:
                    yield line.model_dump_json() + "\n"

        return _Closing(lines(), media_type=NDJSON)

    @app.get("/v1/build-files/{scope}/{name}")
    async def stored_files(scope: str, name: str) -> StoredFiles:
        return uploads.find(layout, scope, name)[1]

    @app.put("/v1/build-files/{scope}/{name}")
    async def keep_files(request: Request, scope: str, name: str, sha256: str | None = None) -> StoredFiles:
        return await uploads.keep(layout, scope, name, request.stream(), sha256)
