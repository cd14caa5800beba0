"""The files of a VM on a real area: clones that share blocks and nothing else, and their removal."""

import os
import secrets
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from space.disk import area, rootfs
from space.host.command import run
from space.layout import Layout
from space.model.errors import SpaceError
from space.model.ids import SandboxId, new_id

MIB = 1024**2


@pytest.fixture(scope="module")
async def layout(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Layout]:
    found = Layout(tmp_path_factory.mktemp("rootfs") / "data", f"r{secrets.token_hex(2)[:3]}", 0x7000_0000)
    await area.prepare(found, disk_gib=1, memory_gib=1)
    yield found
    await area.release(found)
    shutil.rmtree(found.data_dir)  # gigabytes, which pytest would keep for three runs


@pytest.fixture
async def sandbox(layout: Layout) -> AsyncGenerator[SandboxId]:
    found = SandboxId(new_id())
    yield found
    await rootfs.remove_vm_files(layout, found)


@pytest.fixture(scope="module")
def source(layout: Layout) -> Path:
    path = layout.templates_dir / "source"
    path.write_bytes(os.urandom(32 * MIB))
    os.truncate(path, 4096 * MIB)
    return path


def _first(path: Path, size_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size_bytes)


async def test_a_clone_shares_blocks_until_one_side_writes(layout: Layout, source: Path, sandbox: SandboxId) -> None:
    disk = layout.vm_dir(sandbox) / "disk"
    before = _first(source, 32 * MIB)
    await run("btrfs", "filesystem", "sync", str(layout.disk_area))
    free = area.free_bytes(layout.disk_area)
    await rootfs.clone(source, disk)
    await run("btrfs", "filesystem", "sync", str(layout.disk_area))
    assert free - area.free_bytes(layout.disk_area) < 16 * MIB
    assert disk.stat().st_size == source.stat().st_size
    with disk.open("r+b") as file:
        file.write(b"mine")
    assert _first(source, 32 * MIB) == before
    assert _first(disk, 8) == b"mine" + before[4:8]
    assert disk.stat().st_mode & 0o777 == 0o600


async def test_a_clone_takes_the_place_of_a_half_made_one(layout: Layout, source: Path, sandbox: SandboxId) -> None:
    disk = layout.vm_dir(sandbox) / "disk"
    disk.parent.mkdir()
    disk.write_text("half")
    await rootfs.clone(source, disk)
    assert disk.stat().st_size == source.stat().st_size


async def test_a_clone_to_another_file_system_says_why_not(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "vm" / "disk"
    with pytest.raises(SpaceError, match="share blocks"):
        await rootfs.clone(source, target)
    assert not target.exists()


async def test_memory_is_sparse_and_apart_from_disks(layout: Layout, sandbox: SandboxId) -> None:
    memory = layout.memory_file(sandbox)
    await rootfs.make_memory_file(memory, 512)
    await rootfs.make_memory_file(memory, 256)
    assert memory.stat().st_size == 256 * MIB
    assert memory.stat().st_blocks == 0
    assert memory.stat().st_dev != layout.disk_area.stat().st_dev
    copy = memory.with_name("copy")
    await rootfs.clone(memory, copy)  # a fork will want this: it works without copy on write


async def test_files_are_found_and_removed_whichever_there_are(
    layout: Layout, source: Path, sandbox: SandboxId
) -> None:
    other = SandboxId(new_id())
    await rootfs.clone(source, layout.vm_dir(sandbox) / "disk")
    await rootfs.make_memory_file(layout.memory_file(other), 128)
    assert {sandbox, other} <= rootfs.existing_vms(layout)
    for each in (sandbox, other, sandbox, SandboxId(new_id())):
        await rootfs.remove_vm_files(layout, each)
    assert rootfs.existing_vms(layout).isdisjoint({sandbox, other})


async def test_a_path_is_no_sandbox(layout: Layout) -> None:
    with pytest.raises(ValueError, match="not a sandbox id"):
        await rootfs.remove_vm_files(layout, SandboxId("../templates"))
    assert layout.templates_dir.is_dir()
