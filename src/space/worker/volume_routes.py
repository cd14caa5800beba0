"""The part of the worker's API that is about volumes (see wire/volumes.py)."""

import contextlib
from typing import Annotated, Literal

import httpx2
from fastapi import FastAPI, Path, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from space.wire.volumes import ContentAnswer, CreateVolume, asked
from space.worker.volumes import Volumes

Id = Annotated[str, Path(pattern=r"^[a-z0-9]{20}$")]


def add_routes(app: FastAPI, volumes: Volumes) -> None:
    """Add the routes."""

    @app.put("/v1/volumes/{volume}", status_code=204)
    async def create(volume: Id, wish: CreateVolume) -> Response:
        await volumes.create(volume, wish.limit_bytes)
        return Response(status_code=204)

    @app.delete("/v1/volumes/{volume}", status_code=204)
    async def delete(volume: Id) -> Response:
        await volumes.delete(volume)
        return Response(status_code=204)

    @app.api_route("/v1/volumes/{volume}/content/{part}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def content(request: Request, volume: Id, part: Literal["dir", "path", "file"]) -> Response:
        return await _passed_on(volumes, request, volume, part)


async def _passed_on(volumes: Volumes, request: Request, volume: str, part: str) -> Response:
    """Answer as the volume's server does; it is kept running until the last byte has gone."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(volumes.serving(volume))
        transport = httpx2.AsyncHTTPTransport(uds=str(server.content_socket))
        http = await stack.enter_async_context(httpx2.AsyncClient(transport=transport, base_url="http://volume"))
        body = request.stream() if request.method in ("PUT", "PATCH") else None
        answer = await stack.enter_async_context(asked(http, f"/{part}", request.method, request.url.query, body))
        kept = stack.pop_all()

    return _Passed(kept, answer)


class _Passed(StreamingResponse):
    """An answer of a volume's server; what it holds is let go of when it is over, or its reader has left."""

    def __init__(self, kept: contextlib.AsyncExitStack, answer: ContentAnswer) -> None:
        super().__init__(answer.body, answer.status, answer.headers)
        self._kept = kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._kept:
            await super().__call__(scope, receive, send)
