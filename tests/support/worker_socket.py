"""A worker's socket that takes what it is told and remembers it: what reached the other side, as bytes.

It stands where a worker is in tests of the control plane, which speaks to it as to any; the worker's own side of these
calls is tested with a real one.
"""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from space.wire.worker import WorkerInfo

Json = dict[str, Any]
_AFTER = {"pause": "paused", "resume": "running"}


@dataclasses.dataclass
class Told:
    """Calls so far, as (method, target, body); `refuse`: answer 503. `events` are the lines of GET /v1/egress.

    `watch` are the facts of GET /v1/watch, after `synced`. An order to pause or resume is answered as done.
    """

    calls: list[tuple[str, str, Json]] = dataclasses.field(default_factory=list)
    refuse: bool = False
    facts: list[Json] = dataclasses.field(default_factory=list)
    authority: Json | None = None
    events: "asyncio.Queue[Json | None]" = dataclasses.field(default_factory=asyncio.Queue)
    streams: list[str] = dataclasses.field(default_factory=list)
    watch: "asyncio.Queue[Json | None]" = dataclasses.field(default_factory=asyncio.Queue)

    def to(self, target: str) -> list[Json]:
        """Return the bodies of the calls to a target."""
        return [body for _, asked, body in self.calls if asked == target]


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, target, _ = head.split("\r\n")[0].split(" ")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head.split("\r\n")[1:])}
    return method, target, await reader.readexactly(int(headers.get("content-length", 0)))


def _answer(told: Told, info: WorkerInfo, method: str, target: str) -> tuple[int, object]:
    match method, target:
        case _ if told.refuse and method in ("PUT", "POST"):
            return 503, {"title": "t", "status": 503, "code": "unavailable", "detail": "restarting"}
        case "POST", _ if target.endswith(("/pause", "/resume")):
            _, _, _, sandbox, verb = target.split("/")
            return 200, {"id": sandbox, "state": _AFTER[verb], "epoch": 1}
        case "GET", "/v1/worker":
            return 200, info.model_dump(mode="json") | {"authority": told.authority}
        case "GET", "/v1/sandboxes":
            return 200, told.facts
        case "GET", "/v1/templates":
            return 200, []
        case _:
            return 204, None


@contextlib.asynccontextmanager
async def listening(path: Path, worker: str = "w1") -> AsyncGenerator[Told]:
    """Serve at `path` as the worker with this id."""
    told = Told()
    info = WorkerInfo(
        worker_id=worker,
        boot_id="b",
        driver="qemu",
        accelerator="tcg",
        vmm_version="7.2",
        memory_mib=1,
        memory_free_mib=1,
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            method, target, body = await _request(reader)
            if target.startswith("/v1/egress"):
                await _stream(told, target, told.events, writer)
                return
            if target == "/v1/watch":
                told.watch.put_nowait({"type": "synced", "boot_id": "b"})
                await _stream(told, target, told.watch, writer)
                return
            status, content = _answer(told, info, method, target)
            if method in ("PUT", "POST") and status // 100 == 2:
                told.calls.append((method, target, json.loads(body or b"{}")))
            text = b"" if content is None else json.dumps(content).encode()
            head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode() + text)
            await writer.drain()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield told


async def _stream(told: Told, target: str, lines: "asyncio.Queue[Json | None]", writer: asyncio.StreamWriter) -> None:
    """Send lines as they are put into the queue; None ends the stream as a worker that goes away does."""
    told.streams.append(target)
    writer.write(b"HTTP/1.1 200 X\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n")
    while (event := await lines.get()) is not None:
        writer.write(json.dumps(event).encode() + b"\n")
        await writer.drain()
