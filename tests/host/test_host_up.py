"""`space up` that cannot start: says why in one line, and leaves nothing of a data folder that was not there."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from space.host import command
from space.host.command import Completed

_SPACE = Path(sys.prefix) / "bin" / "space"


async def _space(*arguments: str, **environment: str) -> Completed:
    return await command.run(str(_SPACE), *arguments, env=environment, timeout_s=60, check=False)


@pytest.mark.parametrize("options", [(), ("--detach",)])
async def test_a_port_in_use_makes_no_folder(tmp_path: Path, options: tuple[str, ...]) -> None:
    data_dir = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = await _space("up", "--data", str(data_dir), "--port", port, *options)
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Cannot listen")
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://u:geheim@127.0.0.1/space", "postgresql://"),
        ("postgresql://u:geheim@127.0.0.1:1/space", "cannot be used"),
        ("postgresql://u:geheim@127.0.0.1:x/space", "cannot be used"),
    ],
)
async def test_a_database_that_is_no_use_makes_no_folder(tmp_path: Path, url: str, says: str) -> None:
    """It was refused when the api started, half a minute and a data folder later."""
    data_dir = tmp_path / "data"
    done = await _space("up", "--data", str(data_dir), "--port", "0", SPACE_DATABASE_URL=url)
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "SPACE_DATABASE_URL" in done.stderr
    assert says in done.stderr
    assert "geheim" not in done.stderr
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("SPACE_SECRET_KEY_FILE", "/nowhere"),
        ("SPACE_UPSTREAM_CA", "/etc/passwd"),
        ("SPACE_UPLINK", "nowhere"),
        ("SPACE_IMAGES", "nothing"),
    ],
)
async def test_what_a_setting_names_is_looked_for_before_a_folder_is_made(
    tmp_path: Path, setting: str, value: str
) -> None:
    data_dir = tmp_path / "data"
    done = await _space("up", "--data", str(data_dir), "--port", "0", **{setting: value})
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert setting in done.stderr
    assert not data_dir.exists()


async def test_without_a_start_the_clients_say_how_to(tmp_path: Path) -> None:
    done = await _space("sandbox", "ls", SPACE_DATA_DIR=str(tmp_path))
    assert (done.status, done.stdout) == (1, "")
    assert "space up" in done.stderr


async def test_a_first_start_can_be_given_up() -> None:
    """The worker was killed some seconds later, since it did not listen while it fetched and compiled."""
    data_dir = Path("/var/lib") / f"space-up-test-{os.getpid()}"
    log = data_dir / "logs" / "worker.log"
    try:
        async with asyncio.TaskGroup() as group, asyncio.timeout(60):
            small = {"SPACE_DISK_GIB": "2", "SPACE_MEMORY_GIB": "1", "SPACE_UPLINK": "none"}
            starting = group.create_task(_space("up", "--data", str(data_dir), "--port", "0", **small))
            while not (log.exists() and "build_step_began" in log.read_text()):
                await asyncio.sleep(0.05)
            os.kill(int((data_dir / "lock").read_text()), signal.SIGTERM)
        done = starting.result()
        assert done.status == 0
        assert "stopped; no microVM runs" in done.stderr
        assert "killed" not in done.stderr
    finally:
        await _space("down", "--data", str(data_dir))
        await command.run("rm", "-rf", str(data_dir))


async def test_a_start_that_fails_says_what_it_leaves() -> None:
    data_dir = Path("/var/lib") / f"space-up-test-{os.getpid()}"
    try:
        done = await _space("up", "--data", str(data_dir), "--port", "0", SPACE_DISK_GIB="1000000")
        assert done.status == 1
        assert "worker could not start" in done.stderr
        assert "SPACE_DISK_GIB" in done.stderr
        assert f"space down --data {data_dir}" in done.stderr
        assert "Traceback" not in done.stderr
    finally:
        await _space("down", "--data", str(data_dir))
        await command.run("rm", "-rf", str(data_dir))
