"""The api as its own process and user: its socket, its first key, its end."""

import asyncio
import contextlib
import shutil
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from pydantic import SecretStr
from tests.support import postgres

import space
from space.host import command, daemon, files, process
from space.layout import Layout
from space.model.ids import is_api_key
from space.settings import ApiSettings, dump_process_settings, read_process_settings
from space.store.db import connected

SOURCES = Path(space.__file__).parents[1]


@pytest.fixture
async def settings(server: postgres.Server) -> AsyncIterator[Path]:
    """The settings file of an api over an empty database, in the folders that `space up` makes."""
    layout = server.layout
    if await postgres.readable_code(layout) is not None:
        pytest.skip("the virtual environment is closed to other users; `space up` mounts it, these tests do not")
    files.make_dir(layout.api_sock.parent, mode=0o2710, uid=layout.api_uid, gid=layout.edge_api_gid)
    async with server.empty_database() as url:
        file = layout.data_dir / "api.json"
        files.write_atomic(file, dump_process_settings(api_settings(layout, url)), owner=layout.api_uid)
        yield file
    shutil.rmtree(layout.api_sock.parent)


def api_settings(layout: Layout, url: SecretStr) -> ApiSettings:
    """Return what `space up` would write."""
    return ApiSettings(
        data_dir=layout.data_dir,
        instance=layout.instance,
        uid_base=layout.uid_base,
        database_url=url,
        secret_keys=(SecretStr("00" * 32),),
    )


def api_argv(file: Path, *more: str) -> tuple[str, ...]:
    """Return the process's command line."""
    return (sys.executable, "-P", "-m", "space.apiserver", "--settings", str(file), *more)


def user(layout: Layout) -> daemon.User:
    """Return who it runs as."""
    return daemon.User(layout.api_uid, layout.api_uid, (layout.edge_api_gid, layout.api_worker_gid))


async def ensured_key(layout: Layout, file: Path, present: str) -> str:
    """Return what `--ensure-key` prints."""
    done = await command.run(
        *daemon.drop_privileges(user(layout)), *api_argv(file, "--ensure-key"),
        stdin=present.encode(), env={"PYTHONPATH": str(SOURCES)}, cwd=Path("/"),
    )  # fmt: skip
    return done.stdout


@contextlib.asynccontextmanager
async def running(layout: Layout, file: Path) -> AsyncIterator[process.Watched]:
    """Start the process and wait until its socket answers; killed at the end if it still lives."""
    log = layout.data_dir / "api.log"
    api = daemon.spawn(api_argv(file), log=log, user=user(layout), env={"PYTHONPATH": str(SOURCES)})
    try:
        async with asyncio.timeout(30), over(layout) as http:
            while True:
                assert api.alive, log.read_text()
                with contextlib.suppress(httpx2.TransportError):
                    await http.get("/healthz")
                    break
                await asyncio.sleep(0.05)
        yield api
    finally:
        await api.stop(5)


def over(layout: Layout, key: str | None = None) -> httpx2.AsyncClient:
    """Return a client on the process's socket."""
    transport = httpx2.AsyncHTTPTransport(uds=str(layout.api_sock))
    return httpx2.AsyncClient(transport=transport, base_url="http://api", headers={"x-api-key": key} if key else {})


async def test_the_first_key_is_printed_once_and_works(server: postgres.Server, settings: Path) -> None:
    layout = server.layout
    printed = await ensured_key(layout, settings, "")
    key = printed.strip()
    assert is_api_key(key)
    assert await ensured_key(layout, settings, printed) == "", "it works, so there is nothing to tell"
    assert is_api_key((await ensured_key(layout, settings, "e2b_" + "0" * 40)).strip())
    async with running(layout, settings), over(layout, key) as http:
        assert (await http.get("/v1/sandboxes")).json() == {"sandboxes": [], "next_cursor": None}


async def test_its_socket_is_for_its_own_user_and_the_edge(server: postgres.Server, settings: Path) -> None:
    layout = server.layout
    async with running(layout, settings):
        found = layout.api_sock.stat()
        assert stat.S_IMODE(found.st_mode) == 0o660
        assert (found.st_uid, found.st_gid) == (layout.api_uid, layout.edge_api_gid)


async def test_sigterm_ends_it_cleanly_and_it_starts_again_over_a_stale_socket(
    server: postgres.Server, settings: Path
) -> None:
    layout = server.layout
    async with running(layout, settings) as api:
        api.send(signal.SIGTERM)
        assert await api.wait() == 0
    async with running(layout, settings) as api:
        api.send(signal.SIGKILL)
        await api.wait()
    assert layout.api_sock.exists()
    async with running(layout, settings), over(layout) as http:
        assert (await http.get("/healthz")).status_code == 200


async def test_sigterm_lets_a_request_under_way_finish(server: postgres.Server, settings: Path) -> None:
    layout = server.layout
    key = (await ensured_key(layout, settings, "")).strip()
    async with running(layout, settings) as api, over(layout, key) as http:
        body_sent = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b'{"label": '
            body_sent.set()
            while not stopping.is_set():
                await asyncio.sleep(0.02)
            yield b'"late"}'

        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(http.post("/v1/keys", content=slow()))
            await body_sent.wait()
            await http.get("/healthz")  # so that the slow request has been taken up before
            api.send(signal.SIGTERM)
            stopping.set()
        assert answer.result().status_code == 201
        assert await api.wait() == 0


async def test_a_hundred_megabytes_are_refused_with_flat_memory(server: postgres.Server, settings: Path) -> None:
    layout = server.layout
    key = (await ensured_key(layout, settings, "")).strip()

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(1600):
            yield b" " * 65536

    def peak_kib(pid: int) -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])

    async with running(layout, settings) as api, over(layout, key) as http:
        await http.get("/v1/keys")
        before = peak_kib(api.ref.pid)
        try:
            answer = await http.post("/v1/sandboxes", content=chunks(), timeout=30)
        except httpx2.TransportError:
            pass  # it answered and closed while we were still sending
        else:
            assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert peak_kib(api.ref.pid) - before < 20 * 1024
        assert (await http.get("/v1/keys")).status_code == 200


async def test_a_database_that_contradicts_the_code_is_refused_in_one_line(
    server: postgres.Server, settings: Path
) -> None:
    await ensured_key(server.layout, settings, "")
    async with connected(read_process_settings(ApiSettings, settings).database_url) as db:
        await db.execute("UPDATE schema_migrations SET checksum = 'other'")
    done = await command.run(
        *daemon.drop_privileges(user(server.layout)), *api_argv(settings), env={"PYTHONPATH": str(SOURCES)},
        cwd=Path("/"), check=False,
    )  # fmt: skip
    assert done.status == 1
    assert done.stderr.startswith("space.apiserver: Migration 0001_first was changed after it was applied")


async def test_the_password_shows_nowhere(server: postgres.Server, settings: Path) -> None:
    layout = server.layout
    password = settings.read_text().split("space:", 1)[1].split("@", 1)[0]
    async with running(layout, settings) as api:
        about = Path(f"/proc/{api.ref.pid}")
        assert password.encode() not in (about / "cmdline").read_bytes() + (about / "environ").read_bytes()
        assert password not in (layout.data_dir / "api.log").read_text()
    assert settings.stat().st_mode & 0o077 == 0
