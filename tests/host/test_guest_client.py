"""The first words with an agent: whatever answers in its place costs one sandbox, not the worker."""

import asyncio
import multiprocessing
import secrets
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from space.guest.agent import GUEST_ADDRESS, AgentError, initialise
from space.host import command, netns
from space.wire.agent import AgentInit
from space.wire.gateway import AGENT_INTERNAL_PORT

_INIT = AgentInit(sandbox_id="s" * 20, hostname="h", env={}, access_token="t", time_unix_ns=0, entropy="")
_DEADLINE_S = 10


@pytest.fixture
async def guest() -> AsyncGenerator[Path]:
    """A namespace with the guest's address."""
    name = f"test-{secrets.token_hex(3)}"
    await command.run("ip", "netns", "add", name)
    try:
        await command.run("ip", "-n", name, "address", "add", f"{GUEST_ADDRESS}/32", "dev", "lo")
        await command.run("ip", "-n", name, "link", "set", "lo", "up")
        yield netns.path(name)
    finally:
        await netns.delete(name)


def _repeat(listening: socket.socket, said: bytes) -> None:
    connection, _ = listening.accept()
    while True:
        connection.sendall(said)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n" * 1000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 1_000_000,
    ],
    ids=["interim answers", "body"],
)
async def test_an_answer_without_end_is_given_up(guest: Path, said: bytes) -> None:
    listening = netns.inside(guest, lambda: socket.create_server((GUEST_ADDRESS, AGENT_INTERNAL_PORT)))
    flooding = multiprocessing.get_context("fork").Process(target=_repeat, args=(listening, said), daemon=True)
    with listening:
        flooding.start()
    try:
        async with asyncio.timeout(_DEADLINE_S):
            with pytest.raises(AgentError, match="too long"):
                await initialise(guest, _INIT)
    finally:
        flooding.kill()
        flooding.join()
