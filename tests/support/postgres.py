"""A real PostgreSQL for tests: one server a session, a database of its own for each test, cloned from a template.

The server is the embedded one, started the way `space up` does, with fsync off: tests survive no power cut. Autovacuum
is off too: its worker may sit in a database that is to be dropped, and our role has no right to end it.
"""

import contextlib
import dataclasses
import os
import secrets
import shutil
import string
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic import SecretStr

from space.host import command, daemon, files
from space.layout import RUN_ROOT, UID_RANGE_FIRST, Layout
from space.store import embedded, migrate
from space.store.db import Database, connected

TEMPLATE = "template_space"
_OPTIONS = ("fsync=off", "autovacuum=off", "max_connections=100")


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A running server; `admin` is connected to the role's own database."""

    layout: Layout
    admin: Database

    def url(self, database: str) -> SecretStr:
        """Return the address of one of its databases."""
        own = embedded.dsn(self.layout).get_secret_value()
        return SecretStr(own.replace(f"@/{embedded.ROLE}?", f"@/{database}?"))

    @contextlib.asynccontextmanager
    async def empty_database(self) -> AsyncIterator[SecretStr]:
        """Make a database without our schema, and drop it at the end."""
        async with self._database("template0") as url:
            yield url

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[SecretStr]:
        """Make a database with our schema, and drop it at the end."""
        async with self._database(TEMPLATE) as url:
            yield url

    @contextlib.asynccontextmanager
    async def _database(self, template: str) -> AsyncIterator[SecretStr]:
        name = f"test_{secrets.token_hex(6)}"
        await self.admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self.url(name)
        finally:
            await self.admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def new_layout() -> Layout:
    """Return the layout of an instance of our own; its data folder lets other users pass, as a real one must."""
    folder = Path(tempfile.mkdtemp(prefix="space-test-"))
    folder.chmod(0o711)
    instance = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(4))
    return Layout(folder, instance, UID_RANGE_FIRST + 0x0FFF_0000)


def make_run_dir(layout: Layout) -> None:
    """Make the run folders that `space up` makes before it starts PostgreSQL."""
    files.make_dir(RUN_ROOT, mode=0o711)
    files.make_dir(layout.run_dir, mode=0o711)


@contextlib.asynccontextmanager
async def started() -> AsyncIterator[Server]:
    """Start a server and end it, with everything it left."""
    if os.geteuid() != 0:
        raise PermissionError("These tests start PostgreSQL as a system user: run them as root.")
    layout = new_layout()
    make_run_dir(layout)
    try:
        code_root = await readable_code(layout)
        await embedded.prepare(layout, code_root)
        options = (argument for option in _OPTIONS for argument in ("-c", option))
        argv = (*embedded.argv(layout, code_root), *options)
        server = daemon.spawn(argv, log=layout.data_dir / "postgres.log", user=embedded.user())
        try:
            async with connected(embedded.dsn(layout), connections=2) as admin:
                await admin.wait_ready(30)
                await allow_databases(layout, code_root)
                await admin.execute(f"CREATE DATABASE {TEMPLATE}")
                prepared = Server(layout, admin)
                async with connected(prepared.url(TEMPLATE), connections=1) as db:
                    await migrate.migrate(db)
                yield prepared
        finally:
            await embedded.stop(layout)
            server.release()
    finally:
        await hide_code(layout)
        shutil.rmtree(layout.data_dir)
        shutil.rmtree(layout.run_dir)


async def readable_code(layout: Layout) -> Path | None:
    """Return None where the system user can read our virtual environment, else a mount of it where it can."""
    nobody = daemon.drop_privileges(daemon.User(layout.api_uid, layout.api_uid))
    if (await command.run(*nobody, str(embedded.binary("postgres")), "--version", check=False)).status == 0:
        return None
    root = layout.run_dir / "venv"
    files.make_dir(root, mode=0o755)
    await command.run("mount", "--bind", sys.prefix, str(root))
    return root


async def hide_code(layout: Layout) -> None:
    """Take that mount away."""
    root = layout.run_dir / "venv"
    if root.is_mount():
        await command.run("umount", "--lazy", str(root))


async def allow_databases(layout: Layout, code_root: Path | None) -> None:
    """Let the role make databases; in the product it owns one and makes none."""
    await command.run(
        *daemon.drop_privileges(embedded.user()),
        str(embedded.binary("psql", code_root)), "-h", str(layout.postgres_run_dir), "-U", embedded.SYSTEM_USER,
        "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-c", f"ALTER ROLE {embedded.ROLE} CREATEDB",
        cwd=Path("/"),
    )  # fmt: skip
