"""The host's disk area is full: creates are refused, running sandboxes are held and go on when there is room again."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.support.deployment import Deployment, eventually

from space.disk import btrfs

LEAVE_BYTES = 64 * 1024 * 1024


def _free_bytes(area: Path) -> int:
    found = os.statvfs(area)
    return found.f_bavail * found.f_frsize


@pytest.fixture
async def filler(space: Deployment) -> AsyncGenerator[Path]:
    """A file that takes nearly all room of the disk area (allocated, not written), gone after the test."""
    area = space.data / "disk"
    path = area / "filler"
    await btrfs.commit(area)  # else what a build has just removed is told as free and cannot be had
    free = _free_bytes(area)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, free - LEAVE_BYTES)
    finally:
        os.close(descriptor)
    await eventually(lambda: _free_bytes(area) <= 2 * LEAVE_BYTES, within_s=30, what="btrfs counts the file")
    yield path
    path.unlink(missing_ok=True)
    await eventually(lambda: _free_bytes(area) > free // 2, within_s=30, what="btrfs counts the file's end")


async def test_create_is_refused_and_leaves_nothing(space: Deployment, filler: Path) -> None:
    before = {path.name for path in (space.data / "disk" / "vms").iterdir()}
    answer = await space.http.post("/v1/sandboxes", json={"template": "base"})
    assert answer.status_code == 507, answer.text
    assert answer.json()["code"] == "storage_full"
    assert {path.name for path in (space.data / "disk" / "vms").iterdir()} == before
    live = (await space.http.get("/v1/sandboxes", params={"state": "creating"})).json()["sandboxes"]
    assert live == []


async def test_running_sandbox_is_paused_and_goes_on(space: Deployment, sandbox: str, filler: Path) -> None:
    base = f"/v1/sandboxes/{sandbox}/commands"
    script = "dd if=/dev/urandom of=/home/user/big bs=1M count=400 conv=fsync status=none; sha256sum < /dev/null"
    command = (await space.http.post(base, json={"cmd": script, "detach": True})).json()["command_id"]

    async def state_is(wanted: str) -> bool:
        return bool((await space.state(sandbox))["state"] == wanted)

    await eventually(lambda: state_is("paused"), within_s=120, what="the sandbox is paused")
    assert (await space.state(sandbox))["reason"] == "disk_full"
    refused = await space.http.get(base)
    assert (refused.status_code, refused.json()["code"]) == (409, "sandbox_paused")
    await asyncio.to_thread(filler.unlink)
    await eventually(lambda: state_is("running"), within_s=30, what="the sandbox runs again")

    async def finished() -> bool:
        found = (await space.http.get(f"{base}/{command}")).json()
        return found["running"] is False and found["code"] == 0

    await eventually(finished, within_s=180, what="the write went through without an error")
    assert await space.run(sandbox, "stat -c %s /home/user/big") == (0, f"{400 * 1024 * 1024}\n")
