"""Control groups on the host's real hierarchy, whichever version it has."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from space.host import cgroup
from space.host.cgroup import Limits

INSTANCE = "tscg"
SANDBOX = "cgroup00000000000000"


@pytest.fixture
async def group() -> AsyncGenerator[None]:
    """A group with 64 MiB and 8 processes."""
    if os.getuid() != 0:
        pytest.skip("needs root: makes control groups")
    cgroup.create(INSTANCE, SANDBOX, Limits(memory_bytes=64 << 20, processes=8, cpu_weight=100))
    if SANDBOX not in cgroup.sandboxes(INSTANCE):
        pytest.skip("this host has no usable control groups")
    yield
    await cgroup.remove(INSTANCE, SANDBOX)
    assert SANDBOX not in cgroup.sandboxes(INSTANCE)


async def run_inside(script: str) -> int:
    """Run a shell script that waits until it is in the group; returns its exit status."""
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", f"read go; {script}", stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    cgroup.enter(INSTANCE, SANDBOX, process.pid)
    await process.communicate(b"\n")
    return process.returncode or 0


@pytest.mark.usefixtures("group")
async def test_memory_is_bounded() -> None:
    """More than the limit ends the process, less does not."""
    hungry = "exec /usr/bin/python3 -c 'import sys; bytearray(int(sys.argv[1]) << 20)' "
    assert await run_inside(hungry + "16") == 0
    assert not cgroup.ran_out_of_memory(INSTANCE, SANDBOX)
    assert await run_inside(hungry + "256") != 0
    assert cgroup.ran_out_of_memory(INSTANCE, SANDBOX)


@pytest.mark.usefixtures("group")
async def test_processes_are_bounded() -> None:
    """A fork over the limit fails, in the group alone."""
    assert await run_inside("for i in 1 2 3; do sleep 0 & done; wait") == 0
    assert await run_inside("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1 & done; wait") != 0


@pytest.mark.usefixtures("group")
async def test_limits_can_be_changed_and_removal_is_idempotent() -> None:
    """Making a group again sets its limits; removing twice is removing once."""
    cgroup.create(INSTANCE, SANDBOX, Limits(memory_bytes=128 << 20, processes=16, cpu_weight=200))
    files = {
        path.name: path
        for root in Path("/sys/fs/cgroup").glob(f"**/space-{INSTANCE}/{SANDBOX}")
        for path in root.iterdir()
    }
    memory = files.get("memory.max") or files["memory.limit_in_bytes"]
    assert int(memory.read_text()) == 128 << 20
    await cgroup.remove(INSTANCE, SANDBOX)
    await cgroup.remove(INSTANCE, SANDBOX)
    cgroup.enter(INSTANCE, SANDBOX, os.getpid())


@pytest.mark.usefixtures("group")
async def test_sandboxes_weigh_as_much_as_processes_beside_them() -> None:
    """In version 1 the group of all was as one process: five VMs beside thirteen of those got a fourteenth."""
    shares = {path.parent.name: path for path in (*Path("/sys/fs/cgroup").glob(f"*/space-{INSTANCE}/cpu.shares"),)}
    if not shares:
        pytest.skip("version 2, where it counts as one of the host's slices")
    other = "cgroup11111111111111"
    cgroup.create(INSTANCE, other, Limits(memory_bytes=64 << 20, processes=8, cpu_weight=200))
    try:
        assert int(shares[f"space-{INSTANCE}"].read_text()) == 1024 + 2048
    finally:
        await cgroup.remove(INSTANCE, other)
    assert int(shares[f"space-{INSTANCE}"].read_text()) == 1024
