"""The areas of an instance on real loop devices: made once, found again, healed after a kill, given back."""

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from space.disk import area, btrfs
from space.host import mounts
from space.host.command import run
from space.host.room import HOST_CURE, check_room
from space.layout import Layout
from space.model.errors import Conflict, InvalidArgument, StorageFull

GIB = 1024**3


@pytest.fixture
async def layout(tmp_path: Path) -> AsyncGenerator[Layout]:
    found = Layout(tmp_path / "data", f"d{secrets.token_hex(2)[:3]}", 0x7000_0000)
    yield found
    await area.release(found)
    shutil.rmtree(found.data_dir, ignore_errors=True)  # gigabytes, which pytest would keep for three runs


def _images(layout: Layout) -> list[Path]:
    return [layout.data_dir / "disk.img", layout.data_dir / "mem.img"]


async def _loops(layout: Layout) -> list[list[str]]:
    return [await mounts.loops_of(image) for image in _images(layout)]


async def _prepare(layout: Layout, memory_gib: int = 1) -> None:
    await area.prepare(layout, disk_gib=1, memory_gib=memory_gib)


async def test_prepared_twice_is_prepared_once(layout: Layout) -> None:
    await _prepare(layout)
    (layout.templates_dir / "kept").write_text("here")
    first = await _loops(layout)
    await _prepare(layout)
    assert await _loops(layout) == first
    assert [len(loops) for loops in first] == [1, 1]
    assert (layout.templates_dir / "kept").read_text() == "here"
    assert layout.disk_area.stat().st_dev != layout.memory_area.stat().st_dev


async def test_what_a_guest_writes_sets_little_room_apart(layout: Layout) -> None:
    """Else btrfs writes a busy guest's memory back all the time (docs/decisions/0035)."""
    await _prepare(layout)
    told = (await run("btrfs", "inspect-internal", "dump-super", str(layout.data_dir / "mem.img"))).stdout
    assert [line.split()[1] for line in told.splitlines() if line.startswith("nodesize")] == ["4096"]


async def test_what_was_deleted_is_free_after_a_commit(layout: Layout) -> None:
    """Room that guests' memory had taken was missing for half a minute, and sandboxes were refused for it."""
    await _prepare(layout)
    filler = layout.memory_area / "filler"
    filler.write_bytes(bytes(256 * 1024**2))
    await run("sync", "--file-system", str(filler))
    before = area.free_bytes(layout.memory_area)
    filler.unlink()
    await btrfs.commit(layout.memory_area)
    assert area.free_bytes(layout.memory_area) > before + 200 * 1024**2


async def test_folders_can_be_passed_but_not_listed(layout: Layout) -> None:
    await _prepare(layout)
    for folder in (layout.disk_area, layout.disk_area / "vms", layout.templates_dir, layout.memory_area / "vms"):
        assert folder.stat().st_mode & 0o777 == 0o711


async def test_images_are_allocated_and_stay_so(layout: Layout) -> None:
    await _prepare(layout)
    filler = layout.disk_area / "filler"
    filler.write_bytes(os.urandom(64 * 1024**2))
    await run("sync", "--file-system", str(filler))
    filler.unlink()
    await run("btrfs", "filesystem", "sync", str(layout.disk_area))
    await run("fstrim", str(layout.disk_area), check=False)
    await area.release(layout)
    for image in _images(layout):
        assert image.stat().st_blocks * 512 >= image.stat().st_size


async def test_room_is_refused_before_it_is_gone(layout: Layout) -> None:
    await _prepare(layout)
    check_room(layout.disk_area, 0, "A test")
    assert area.has_room(layout)
    filler = layout.disk_area / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, area.free_bytes(layout.disk_area) - area.RESERVE_BYTES // 2)
    await run("btrfs", "filesystem", "sync", str(layout.disk_area))
    try:
        assert not area.has_room(layout)
        with pytest.raises(StorageFull, match="held back"):
            check_room(layout.disk_area, 0, "A test")
    finally:
        filler.unlink()


async def test_an_area_filled_to_the_end_still_takes_names_and_deletes(layout: Layout) -> None:
    """With metadata as mkfs makes it in one copy (8 MiB), this area could not even make a folder any more."""
    await _prepare(layout)
    filler = layout.disk_area / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, area.free_bytes(layout.disk_area) - 16 * 1024**2)
    for number in range(2000):
        (layout.disk_area / f"folder-{number}").mkdir()
    filler.unlink()
    await run("btrfs", "filesystem", "sync", str(layout.disk_area))
    assert area.free_bytes(layout.disk_area) > GIB // 2


async def test_released_leaves_no_loop_and_can_be_prepared_again(layout: Layout) -> None:
    await _prepare(layout)
    (layout.disk_area / "kept").write_text("here")
    await area.release(layout)
    assert await _loops(layout) == [[], []]
    assert mounts.mounted_at(layout.disk_area) is None
    await area.release(layout)
    await _prepare(layout)
    assert (layout.disk_area / "kept").read_text() == "here"


async def test_release_says_what_is_in_use(layout: Layout) -> None:
    await _prepare(layout)
    with (layout.disk_area / "open").open("w"), pytest.raises(Conflict, match="still in use"):
        await area.release(layout)


async def test_an_area_grows_but_never_shrinks(layout: Layout) -> None:
    await _prepare(layout, memory_gib=1)
    await _prepare(layout, memory_gib=2)
    grown = os.statvfs(layout.memory_area)
    assert grown.f_blocks * grown.f_frsize == area.memory_image_bytes(2)
    await _prepare(layout, memory_gib=1)
    assert (layout.data_dir / "mem.img").stat().st_size == area.memory_image_bytes(2)


async def test_what_does_not_fit_is_refused_and_leaves_nothing(layout: Layout) -> None:
    with pytest.raises(InvalidArgument, match="SPACE_DISK_GIB"):
        await area.prepare(layout, disk_gib=1_000_000, memory_gib=1)
    with pytest.raises(StorageFull, match="SPACE_MEMORY_GIB"):
        await area.prepare(layout, disk_gib=None, memory_gib=1_000_000)
    assert list(layout.data_dir.iterdir()) == []


async def test_defaults_leave_much_of_the_hosts_disk_and_stay_the_same(ext4_dir: Path) -> None:
    """A default start once took three quarters of a disk, most of it for a memory image nobody had asked for."""
    layout = Layout(ext4_dir / "data", "dflt", 0x7000_0000)
    layout.data_dir.mkdir()
    assert area.default_memory_mib(layout.data_dir) == 2 * 1024
    try:
        await area.prepare(layout, disk_gib=None, memory_gib=2)
        assert [image.stat().st_size / GIB for image in _images(layout)] == [4, 2.75]
        assert area.default_memory_mib(layout.data_dir) == 2 * 1024
        with pytest.raises(StorageFull, match="host's own disk"):
            check_room(layout.data_dir, 4 * GIB, "A test", HOST_CURE)
    finally:
        await area.release(layout)


@pytest.mark.parametrize(("free_gib", "memory_gib", "disk_gib"), [(8, 1, 4), (27, 6, 8), (200, 16, 64)])
def test_the_disk_gets_what_memory_leaves_of_its_share(free_gib: int, memory_gib: int, disk_gib: int) -> None:
    assert area.default_disk_bytes(free_gib * GIB, area.memory_image_bytes(memory_gib)) == disk_gib * GIB


async def test_another_instances_image_is_refused(layout: Layout) -> None:
    await _prepare(layout)
    await area.release(layout)
    with pytest.raises(InvalidArgument, match="belongs to another instance"):
        await _prepare(Layout(layout.data_dir, "othr", layout.uid_base))
    assert await _loops(layout) == [[], []]


async def test_something_else_mounted_there_is_refused(layout: Layout) -> None:
    await _prepare(layout)
    await area.release(layout)
    await run("mount", "-t", "tmpfs", "none", str(layout.disk_area))
    try:
        with pytest.raises(InvalidArgument, match="Unmount it"):
            await _prepare(layout)
    finally:
        await run("umount", str(layout.disk_area))


async def test_a_loop_device_that_is_attached_already_is_used(layout: Layout) -> None:
    await _prepare(layout)
    await area.release(layout)
    for image in _images(layout):
        await run("losetup", "--find", str(image))
    before = await _loops(layout)
    await _prepare(layout)
    assert await _loops(layout) == before


_PHASES: dict[str, Callable[[Layout], bool]] = {
    "allocating": lambda layout: (layout.data_dir / "disk.img.new").exists(),
    "image made": lambda layout: (layout.data_dir / "disk.img").exists(),
    "disk mounted": lambda layout: mounts.mounted_at(layout.disk_area) is not None,
    "memory allocating": lambda layout: (layout.data_dir / "mem.img.new").exists(),
    "memory mounted": lambda layout: mounts.mounted_at(layout.memory_area) is not None,
}


@pytest.mark.parametrize("phase", _PHASES)
async def test_killed_while_preparing_it_is_made_whole_later(layout: Layout, phase: str) -> None:
    code = (
        "import asyncio; from pathlib import Path; from space.disk import area; from space.layout import Layout; "
        f"asyncio.run(area.prepare(Layout(Path({str(layout.data_dir)!r}), {layout.instance!r}, {layout.uid_base}), "
        "disk_gib=1, memory_gib=1))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    async with asyncio.timeout(20):
        while not _PHASES[phase](layout) and process.poll() is None:
            await asyncio.sleep(0)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    await _prepare(layout)
    assert [len(loops) for loops in await _loops(layout)] == [1, 1]
    assert not list(layout.data_dir.glob("*.new"))
    await area.release(layout)
    assert await _loops(layout) == [[], []]


@pytest.fixture
async def ext4_dir(tmp_path: Path) -> AsyncGenerator[Path]:
    """A file system with 10 GiB free, backed by nothing until it is written."""
    image, at = tmp_path / "small.img", tmp_path / "small"
    image.touch()
    os.truncate(image, 10 * GIB + GIB // 2)
    at.mkdir()
    await run("mkfs.ext4", "-q", "-m", "0", str(image))
    await mounts.mount_image(image, at, fstype="ext4", options="noatime")
    yield at
    await run("umount", str(at))
    image.unlink()


@pytest.fixture
async def btrfs_dir(tmp_path: Path) -> AsyncGenerator[Path]:
    image, at = tmp_path / "host.img", tmp_path / "host"
    image.touch()
    os.truncate(image, 4 * GIB)
    at.mkdir()
    await run("mkfs.btrfs", "--quiet", str(image))
    await mounts.mount_image(image, at, fstype="btrfs", options="noatime")
    yield at
    await run("umount", str(at))
    image.unlink()


async def test_on_btrfs_disks_need_no_image(btrfs_dir: Path) -> None:
    layout = Layout(btrfs_dir / "data", "btrf", 0x7000_0000)
    await area.prepare(layout, disk_gib=None, memory_gib=1)
    try:
        assert mounts.mounted_at(layout.disk_area) is None
        assert not (layout.data_dir / "disk.img").exists()
        assert mounts.mounted_at(layout.memory_area) is not None
        flags = (await run("lsattr", str(layout.data_dir / "mem.img"))).stdout.split()[0]
        assert "C" in flags
    finally:
        await area.release(layout)
