"""Fixtures of the tests that need a database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.support import control_plane, postgres

from space.store.db import Database, connected


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[postgres.Server]:
    """A PostgreSQL server for the session."""
    async with postgres.started() as found:
        yield found


@pytest.fixture
async def database_url(server: postgres.Server) -> AsyncIterator[SecretStr]:
    """A database of the test's own, with our schema."""
    async with server.database() as url:
        yield url


@pytest.fixture
async def db(database_url: SecretStr) -> AsyncIterator[Database]:
    """A pool on it."""
    async with connected(database_url) as pool:
        yield pool


@pytest.fixture
async def api(db: Database, tmp_path: Path) -> AsyncIterator[control_plane.Api]:
    """The api over that database, without a worker."""
    async with control_plane.api_over(db, tmp_path / "no-worker.sock") as made:
        yield made


@pytest.fixture(scope="session")
async def refusing_api(
    server: postgres.Server, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[control_plane.Api]:
    """One api for all tests of requests that are refused and so leave nothing: making a database takes its time."""
    socket = tmp_path_factory.mktemp("refusing") / "no-worker.sock"
    async with server.database() as url, connected(url) as pool, control_plane.api_over(pool, socket) as made:
        yield made
