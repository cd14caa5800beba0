"""The embedded PostgreSQL: reachable for a uid without a passwd entry, for nobody else, and back after `kill -9`."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support import postgres

from space.host import command, daemon, process
from space.layout import Layout
from space.store import embedded
from space.store.db import connected

_ASK = """
import asyncio, sys
from pydantic import SecretStr
from space.store.db import connected
async def main():
    async with connected(SecretStr(sys.stdin.read())) as db:
        print((await db.fetchrow("SELECT current_user AS who"))["who"])
asyncio.run(main())
"""


@pytest.fixture
async def layout() -> AsyncIterator[Layout]:
    """A prepared instance whose server does not run."""
    made = postgres.new_layout()
    postgres.make_run_dir(made)
    try:
        if await postgres.readable_code(made) is not None:
            pytest.skip("the virtual environment is closed to other users; `space up` mounts it, these tests do not")
        await embedded.prepare(made)
        yield made
    finally:
        await embedded.stop(made)
        await postgres.hide_code(made)
        shutil.rmtree(made.data_dir)
        shutil.rmtree(made.run_dir)


@contextlib.asynccontextmanager
async def serving(layout: Layout) -> AsyncIterator[process.Watched]:
    """Start the server and wait until it answers; it is not ended here."""
    server = daemon.spawn(embedded.argv(layout), log=layout.data_dir / "pg.log", user=embedded.user())
    try:
        async with connected(embedded.dsn(layout)) as db:
            await db.wait_ready(30)
        yield server
    finally:
        server.release()


async def ask_as(uid: int, layout: Layout) -> command.Completed:
    """Connect from a process of this uid, the address given on its standard input."""
    source = str(Path(embedded.__file__).parents[2])
    return await command.run(
        *daemon.drop_privileges(daemon.User(uid, uid)), sys.executable, "-P", "-c", _ASK,
        stdin=embedded.dsn(layout).get_secret_value().encode(), env={"PYTHONPATH": source, "HOME": "/nonexistent"},
        cwd=Path("/"), check=False,
    )  # fmt: skip


async def test_the_api_connects_without_a_passwd_entry_and_others_do_not(layout: Layout) -> None:
    async with serving(layout):
        done = await ask_as(layout.api_uid, layout)
        assert (done.status, done.stdout) == (0, "space\n"), done.stderr
        refused = await ask_as(layout.edge_uid, layout)
        assert refused.status != 0
        assert "PermissionError" in refused.stderr


async def test_what_lies_on_disk_is_closed(layout: Layout) -> None:
    owner = embedded.user()
    folder, password, run = embedded.data_dir(layout), embedded.password_file(layout), layout.postgres_run_dir
    assert (folder.stat().st_mode & 0o7777, folder.stat().st_uid) == (0o700, owner.uid)
    assert (password.stat().st_mode & 0o7777, password.stat().st_uid) == (0o600, 0)
    assert (run.stat().st_mode & 0o7777, run.stat().st_uid, run.stat().st_gid) == (0o2750, owner.uid, layout.api_uid)
    assert embedded.dsn(layout).get_secret_value() not in " ".join(embedded.argv(layout))


async def test_the_role_is_no_superuser_and_a_wrong_password_is_refused(layout: Layout) -> None:
    async with serving(layout), connected(embedded.dsn(layout)) as db:
        row = await db.fetchrow(
            "SELECT rolsuper, rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = current_user"
        )
        assert row is not None
        assert tuple(row) == (False, False, False)
        right = embedded.password_file(layout).read_text()
        embedded.password_file(layout).write_text("wrong\n")
        async with connected(embedded.dsn(layout)) as wrong:
            with pytest.raises(Exception, match="password authentication failed"):
                await wrong.execute("SELECT 1")
        embedded.password_file(layout).write_text(right)


async def test_what_was_committed_is_there_after_kill_9(layout: Layout) -> None:
    async with serving(layout) as server:
        async with connected(embedded.dsn(layout)) as db:
            await db.execute("CREATE TABLE kept (x int)")
        server.send(signal.SIGKILL)
        await server.wait()
    assert (embedded.data_dir(layout) / "postmaster.pid").exists()
    await embedded.prepare(layout)
    async with serving(layout), connected(embedded.dsn(layout)) as db:
        assert await db.fetch("SELECT * FROM kept") == []


async def test_a_pid_file_with_the_pid_of_another_process_is_no_obstacle(layout: Layout) -> None:
    async with serving(layout) as server:
        server.send(signal.SIGKILL)
        await server.wait()
    pid_file = embedded.data_dir(layout) / "postmaster.pid"
    lines = pid_file.read_text().split("\n")
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]))
    await embedded.prepare(layout)
    async with serving(layout):
        pass


async def test_a_server_that_was_left_running_is_ended_first(layout: Layout) -> None:
    async with serving(layout) as left:
        await embedded.prepare(layout)
        assert not left.alive
        async with serving(layout) as new:
            assert new.alive


async def test_a_half_made_cluster_is_made_anew(layout: Layout) -> None:
    half = layout.data_dir / "postgres.new"
    shutil.move(embedded.data_dir(layout), half)
    (half / "PG_VERSION").unlink()
    await embedded.prepare(layout)
    assert not half.exists()
    async with serving(layout):
        pass
