"""Fixtures of the tests that need a database."""

from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr
from tests.support import postgres

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
