"""Connections to PostgreSQL, and what may go wrong with them.

`Database` is a pool. A store function takes `Queries`: the pool for a single statement, a transaction's connection for
several. Everything that means "the database does not answer" leaves here as Unavailable.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import parse_qs, urlsplit

import asyncpg
from pydantic import SecretStr

from space.model.errors import InvalidArgument, Unavailable

COMMAND_TIMEOUT_S = 10
"""A statement of ours takes milliseconds; one that takes this long is stuck behind something broken."""

_CLOSE_S = 5
_CHECK_S = 5
_BEGIN = "BEGIN"
_BEGIN_UNSYNCED = "BEGIN; SET LOCAL synchronous_commit TO off"

Record = asyncpg.Record
if TYPE_CHECKING:
    Session = asyncpg.Connection[Record]
else:
    Session = asyncpg.Connection  # generic for the type checker only
_GONE = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InternalClientError,  # the server has said goodbye on this connection, and has not closed it yet
)


class Queries(Protocol):
    """What a store function needs: one statement at a time, `$1` parameters."""

    async def fetch(self, query: str, *args: object) -> list[Record]:
        """Return all rows."""
        ...

    async def fetchrow(self, query: str, *args: object) -> Record | None:
        """Return the first row, or None."""
        ...

    async def execute(self, query: str, *args: object) -> str:
        """Run it for its effect and return the command tag."""
        ...


class _Connection(Session):
    """We leave no session state behind, so the reset that the pool would send after each use is a wasted round trip."""

    def get_reset_query(self) -> str:
        return ""


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _GONE as error:
        raise Unavailable("The database does not answer; it may be restarting. Try again.") from error


async def _set_codecs(connection: Session) -> None:
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


def _tls(dsn: str) -> Literal["disable"] | None:
    """Return the TLS mode; None leaves it to the address (`sslmode=`), whose default is to use it where offered.

    Off on a unix socket: looking for client certificates asks for a home folder, which our uids do not have.
    """
    host = parse_qs(urlsplit(dsn).query).get("host", [""])[0]
    return "disable" if host.startswith("/") else None


class Database:
    """A pool of connections."""

    def __init__(self, pool: "asyncpg.Pool[Record]", dsn: str) -> None:
        self._pool = pool
        self._dsn = dsn

    async def fetch(self, query: str, *args: object) -> list[Record]:
        """Return all rows."""
        with _translated():
            return await self._pool.fetch(query, *args)

    async def fetchrow(self, query: str, *args: object) -> Record | None:
        """Return the first row, or None."""
        with _translated():
            return await self._pool.fetchrow(query, *args)

    async def execute(self, query: str, *args: object) -> str:
        """Run it for its effect and return the command tag."""
        with _translated():
            return await self._pool.execute(query, *args)

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until the database answers; raise Unavailable after `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                await self.execute("SELECT 1")
            except Unavailable:
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                return

    @contextlib.asynccontextmanager
    async def transaction(self, *, synced: bool = True) -> AsyncIterator[Queries]:
        """Run several statements as one; what is raised inside rolls back.

        `synced` False returns before it would survive a loss of power (`synchronous_commit`, some milliseconds): for
        what nobody is told of before a later transaction, which takes this one along, is synced.
        """
        with _translated():
            async with self._pool.acquire() as connection:
                try:
                    await connection.execute(_BEGIN if synced else _BEGIN_UNSYNCED)
                    yield connection
                except BaseException:
                    await connection.execute("ROLLBACK")
                    raise
                await connection.execute("COMMIT")

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Open a connection of its own, outside the pool: for locks and LISTEN."""
        with _translated():
            connection = await asyncpg.connect(self._dsn, timeout=COMMAND_TIMEOUT_S, ssl=_tls(self._dsn))
        try:
            with _translated():
                yield connection
        finally:
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await connection.close()
            except _GONE:
                connection.terminate()


async def check(url: SecretStr, setting: str) -> None:
    """Raise InvalidArgument, naming the setting, unless a server answers there within some seconds and lets us in.

    Nothing of the address is repeated: there may be a password in it.
    """
    dsn = url.get_secret_value()
    if urlsplit(dsn).scheme not in ("postgresql", "postgres"):
        raise InvalidArgument(f"{setting} is to be postgresql://USER:PASSWORD@HOST:PORT/DATABASE.")
    try:
        connection = await asyncpg.connect(dsn, timeout=_CHECK_S, ssl=_tls(dsn))
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        told = isinstance(error, OSError | asyncpg.PostgresError) and str(error)
        raise InvalidArgument(
            f"The database that {setting} names cannot be used: {told or type(error).__name__}. Nothing was started."
        ) from error
    await connection.close()


@contextlib.asynccontextmanager
async def connected(url: SecretStr, *, connections: int = 10) -> AsyncIterator[Database]:
    """Open a pool on `url` (`postgresql://...`) and close it at the end. Nothing is dialled before it is needed."""
    dsn = url.get_secret_value()
    pool = asyncpg.create_pool(
        dsn,
        min_size=0,
        max_size=connections,
        timeout=COMMAND_TIMEOUT_S,
        command_timeout=COMMAND_TIMEOUT_S,
        connection_class=_Connection,
        init=_set_codecs,
        ssl=_tls(dsn),
    )
    await pool
    try:
        yield Database(pool, dsn)
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await pool.close()
        pool.terminate()
