"""What a database that goes away in the middle looks like to those who use the pool."""

import asyncio
import contextlib
import fcntl
import functools
import struct
import termios
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr
from tests.support.deployment import eventually

from space.model.errors import Unavailable
from space.store.db import connected

_GOODBYE = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"


class _Between:
    """Stands between the pool and its server, and can say the server's goodbye without hanging up."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._clients: list[asyncio.StreamWriter] = []

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._clients.append(writer)
        from_server, to_server = await asyncio.open_unix_connection(self._server)
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, to_server))
            group.create_task(_pump(from_server, writer))

    async def say_goodbye(self) -> None:
        """Tell every client that its session has been ended; return when they have read it."""
        for client in self._clients:
            client.write(b"E" + struct.pack("!I", len(_GOODBYE) + 4) + _GOODBYE)
            await eventually(functools.partial(_all_read, client), within_s=30, what="the goodbye was read")

    def hang_up(self) -> None:
        """Close every client's connection."""
        for client in self._clients:
            client.close()


def _all_read(client: asyncio.StreamWriter) -> bool:
    """Return whether the other end has read all that we sent (unix(7))."""
    number = client.get_extra_info("socket").fileno()
    return fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4)) == bytes(4)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


@pytest.fixture
async def between(database_url: SecretStr, tmp_path: Path) -> AsyncIterator[tuple[_Between, SecretStr]]:
    """The go-between, and the address at which it listens."""
    url = database_url.get_secret_value()
    folder = parse_qs(urlsplit(url).query)["host"][0]
    name = next(Path(folder).glob(".s.PGSQL.*[0-9]")).name
    it = _Between(Path(folder, name))
    listening = await asyncio.start_unix_server(it.carry, tmp_path / name)
    async with listening:
        yield it, SecretStr(f"{url.partition('?')[0]}?host={tmp_path}")
        it.hang_up()


async def test_a_session_that_was_ended_and_is_still_open_is_no_database(
    between: tuple[_Between, SecretStr],
) -> None:
    it, url = between
    async with connected(url, connections=1) as db:
        await db.execute("SELECT 1")
        await it.say_goodbye()
        with pytest.raises(Unavailable):
            await db.execute("SELECT 1")
        it.hang_up()
        await db.wait_ready(10)
