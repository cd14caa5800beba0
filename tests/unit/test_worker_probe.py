"""The first request on the data path to a guest: a slow guest is waited for, a path that does not carry is told."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from space.model.errors import Unavailable
from space.model.ids import SandboxId
from space.worker.host import Host

_SANDBOX = SandboxId("s" * 20)


@contextlib.asynccontextmanager
async def _host(folder: Path, *, status: bytes, after_s: float) -> AsyncGenerator[Host]:
    """A host whose ingress proxy answers each request after a while."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(after_s)
            writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(serve, folder / "sock"):
        transport = httpx2.AsyncHTTPTransport(uds=str(folder / "sock"))
        async with httpx2.AsyncClient(transport=transport, base_url="http://agent") as ingress:
            unused: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Host))
            yield Host(**{**unused, "ingress": ingress})


async def test_a_slow_guest_is_given_longer_with_each_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that were all given up after 2 s never came to an end where a guest needed 3."""
    monkeypatch.setattr("space.worker.host._PROBE_ATTEMPT_S", 0.05)
    async with _host(tmp_path, status=b"200 OK", after_s=0.5) as host:
        await host.probe(_SANDBOX, asyncio.timeout)


async def test_a_path_that_does_not_carry_is_told(tmp_path: Path) -> None:
    async with _host(tmp_path, status=b"503 Service Unavailable", after_s=0) as host:
        with pytest.raises(Unavailable, match=r"does not carry \(status 503\)"):
            await host.probe(_SANDBOX, lambda limit_s: asyncio.timeout(limit_s / 100))
