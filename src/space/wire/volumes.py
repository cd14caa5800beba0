"""The part of a worker's API that is about volumes. Content goes through as it is, in both directions."""

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

import httpx2
import pydantic

from space.model.errors import Unavailable
from space.wire.worker_client import WorkerClient

CONTENT_S = 3600
"""How long the content of one file may take."""

_SILENCE_S = 120


class CreateVolume(pydantic.BaseModel):
    """How much a volume may hold."""

    limit_bytes: int = pydantic.Field(ge=1)


@dataclasses.dataclass(frozen=True, slots=True)
class ContentAnswer:
    """An answer of a volume's server; `headers` are those that a client is told."""

    status: int
    headers: dict[str, str]
    body: AsyncIterator[bytes]


class VolumesClient:
    """The part of a worker's client that is about volumes."""

    def __init__(self, worker: WorkerClient) -> None:
        self._worker = worker

    async def create(self, volume: str, limit_bytes: int) -> None:
        """Make a volume; fine where it is there. Raises StorageFull, Unavailable."""
        body = CreateVolume(limit_bytes=limit_bytes).model_dump_json()
        await self._worker.call("PUT", f"/v1/volumes/{volume}", body, 30)

    async def delete(self, volume: str) -> None:
        """Delete a volume and all in it; fine where there is none. Raises Conflict while it is mounted, Unavailable."""
        await self._worker.call("DELETE", f"/v1/volumes/{volume}", timeout_s=60)

    @contextlib.asynccontextmanager
    async def content(
        self, volume: str, part: str, method: str, query: str, body: AsyncIterable[bytes] | None
    ) -> AsyncGenerator[ContentAnswer]:
        """Ask for content; the answer is good while this is entered. Raises Unavailable."""
        async with asked(self._worker.http, f"/v1/volumes/{volume}/content/{part}", method, query, body) as answer:
            yield answer


@contextlib.asynccontextmanager
async def asked(
    http: httpx2.AsyncClient, path: str, method: str, query: str, body: AsyncIterable[bytes] | None
) -> AsyncGenerator[ContentAnswer]:
    """Pass a request on; raises Unavailable where nobody answers."""
    timeout = httpx2.Timeout(_SILENCE_S, read=CONTENT_S if method == "PUT" else _SILENCE_S)
    request = http.build_request(method, f"{path}?{query}", content=body, timeout=timeout)
    try:
        response = await http.send(request, stream=True)
    except httpx2.TransportError as error:
        raise Unavailable("The volume's server does not answer; it may be restarting. Try again.") from error
    try:
        told = ("content-type", "content-length")
        headers = {name: response.headers[name] for name in told if name in response.headers}
        yield ContentAnswer(response.status_code, headers, response.aiter_raw())
    finally:
        await response.aclose()
