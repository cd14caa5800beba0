"""The API over HTTP, as the commands use it. Errors come as the classes of `space.model.errors`."""

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from pathlib import Path
from typing import Any

import httpx2

from space.model.errors import SpaceError, Unauthorized, Unavailable
from space.settings import ClientSettings
from space.wire.problem import raise_for_problem

Json = dict[str, Any]
"""A JSON object of the API; the commands print most of it as it came."""

Params = Mapping[str, str | int | list[str]]

URL_FILE = "url"
"""In the data folder: where `space up` on this host listens, beside the key."""

_CONNECT_S = 5.0
_SILENCE_S = 60.0
"""A command's stream says something every 15 s, so this long without a byte means that it is broken."""
_LIFECYCLE_S = 120.0
_LINE_BYTES = 1024 * 1024
"""The longest line of a stream; the longest honest one is a piece of output in base64."""


class Api:
    """One API, one key. Use `connect`."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Json | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = _LIFECYCLE_S,
    ) -> httpx2.Response:
        """Make one call and return its answer, read; raises what the API says went wrong.

        `body` goes as JSON, `content` as raw bytes; `timeout_s` None waits for ever.
        """
        timeout = httpx2.Timeout(timeout_s, connect=_CONNECT_S)
        kind = {"json": body} if body is not None else {"content": content}
        try:
            response = await self._http.request(method, path, params=params, headers=headers, timeout=timeout, **kind)
        except httpx2.TransportError as error:
            raise self._unreachable() from error
        raise_for_problem(response)
        return response

    async def get(self, path: str, params: Params | None = None) -> Json:
        """GET a JSON object."""
        found: Json = (await self.call("GET", path, params=params, timeout_s=30)).json()
        return found

    async def post(self, path: str, body: Json) -> Json:
        """POST a JSON object and return the one that comes back."""
        found: Json = (await self.call("POST", path, body=body)).json()
        return found

    async def pages(self, path: str, items: str, params: Params) -> list[Json]:
        """GET all pages of a list; `items` is the name of the list in each."""
        found: list[Json] = []
        cursor: str | None = None
        while True:
            page = await self.get(path, {**params, **({"cursor": cursor} if cursor else {})})
            found += page[items]
            cursor = page.get("next_cursor")
            if not cursor:
                return found

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, path: str, *, params: Params | None = None, body: Json | None = None,
        silence_s: float | None = _SILENCE_S,
    ) -> AsyncGenerator[httpx2.Response]:  # fmt: skip
        """Open an answer that is read while it comes; raises Unavailable when the connection breaks."""
        timeout = httpx2.Timeout(silence_s, connect=_CONNECT_S, read=silence_s)
        kind: Json = {"json": body} if body is not None else {}
        try:
            async with self._http.stream(method, path, params=params, timeout=timeout, **kind) as response:
                if not response.is_success:
                    await response.aread()
                    raise_for_problem(response)
                yield response
        except httpx2.TransportError as error:
            raise self._unreachable() from error

    def _unreachable(self) -> SpaceError:
        return Unavailable(
            f"SPACE does not answer at {self._url}. Does it run, and is it ready (`space up` prints a line)? "
            "Else set SPACE_URL."
        )


async def ndjson(response: httpx2.Response) -> AsyncGenerator[Json]:
    """Yield the objects of an NDJSON answer.

    Raises Unavailable on a line that was cut off, is no object, or does not end: a guest may have written it.
    """
    rest = b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _LINE_BYTES:
            raise Unavailable(f"The stream holds a line of more than {_LINE_BYTES} bytes.")
        for line in filter(bytes.strip, lines):
            yield _object(line)
    if rest.strip():
        yield _object(rest)


def _object(line: bytes) -> Json:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unavailable("The stream broke in the middle of a line.") from error
    if not isinstance(found, dict):
        raise Unavailable("The stream holds a line that is no JSON object.")
    return found


@contextlib.asynccontextmanager
async def connect(settings: ClientSettings) -> AsyncGenerator[Api]:
    """Return the API that the settings name, with their key or the one kept on this host."""
    headers = {"x-api-key": _key(settings)}
    url = address_of(settings)
    async with httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
        yield Api(http, url)


def address_of(settings: ClientSettings) -> str:
    """Return SPACE_URL where it is given, else where the SPACE of the data folder listens, else the default."""
    if "url" not in settings.model_fields_set:
        with contextlib.suppress(OSError):
            return (settings.data_dir / URL_FILE).read_text().strip()
    return settings.url.rstrip("/")


def _key(settings: ClientSettings) -> str:
    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    path: Path = settings.data_dir / "api-key"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        raise Unauthorized(
            f"SPACE is not started yet on this host: sudo space up --detach (no key in {path}). "
            "For one that runs elsewhere, set SPACE_URL and SPACE_API_KEY."
        ) from None
    except PermissionError:
        raise Unauthorized(f"No API key: use sudo ({path} is root's), or set SPACE_API_KEY.") from None
