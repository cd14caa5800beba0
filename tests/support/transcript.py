"""An HTTP server that plays a transcript: for each request in turn, what to answer and when to break off."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator, Sequence


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer. `lines` become NDJSON, one chunk each; with `breaks` the connection is cut after them."""

    lines: Sequence[dict[str, object]] = ()
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    breaks: bool = False


@dataclasses.dataclass
class Transcript:
    """What was asked so far, as (method, target, body), and where the server is."""

    url: str
    asked: list[tuple[str, str, bytes]] = dataclasses.field(default_factory=list)


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, target, _ = head.split("\r\n")[0].split(" ")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head.split("\r\n")[1:])}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return method, target, body


@contextlib.asynccontextmanager
async def playing(answers: Sequence[Answer]) -> AsyncGenerator[Transcript]:
    """Serve `answers` in order, whatever is asked; a request too many gets no answer."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            transcript.asked.append(await _request(reader))
            answer = left.pop(0)
            kind = "application/x-ndjson" if answer.status < 400 else "application/problem+json"
            headers = [f"content-type: {kind}", "transfer-encoding: chunked", "connection: close"]
            headers += [f"{name}: {value}" for name, value in answer.headers]
            writer.write("\r\n".join([f"HTTP/1.1 {answer.status} X", *headers, "", ""]).encode())
            for line in answer.lines:
                data = json.dumps(line).encode() + b"\n"
                writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            if not answer.breaks:
                writer.write(b"0\r\n\r\n")
            await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    transcript = Transcript(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield transcript
    assert left == [], "not all of the transcript was asked for"
