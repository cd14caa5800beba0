"""A btrfs image in a file of the data folder: made whole or not at all, mounted once, grown when asked for more.

Its file is fallocated and stays so. In a sparse image on a full host btrfs turns read-only, and data whose fsync had
shown no error is gone. A discard would punch holes into the file, so the mount is `nodiscard` and the loop device
refuses discards: many hosts run fstrim(8) on every mount once a week.
"""

import asyncio
import dataclasses
import errno
import fcntl
import os
from pathlib import Path

from space import telemetry
from space.host import files, mounts
from space.host.command import run
from space.model.errors import Conflict, InvalidArgument

log = telemetry.logger()

_START_SYNC, _WAIT_SYNC = 0x80089418, 0x40089416
"""_IOR(0x94, 24, __u64) and _IOW(0x94, 22, __u64), linux/btrfs.h: begin a commit, and wait for that one."""
_UNMOUNT_TRIES = 25
_DEVICE_TRIES = 10
_UNMOUNT_POLL_S = 0.2
_SLACK_BYTES = 1024**2
"""btrfs uses whole 64 KiB blocks of a device, so a file system may be a little smaller than its image."""


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """An image file, where it is mounted, and what marks it as this instance's. `node_bytes`: a block of its trees."""

    path: Path
    mount_point: Path
    label: str
    options: str
    node_bytes: int = 16384


async def ensure(image: Image, size_bytes: int) -> None:
    """Make the image where there is none, mount it where it is not, grow it to `size_bytes` where it is smaller.

    Raises InvalidArgument where something else is in its place, CommandError or OSError.
    """
    if not image.path.exists():
        await _make(image, size_bytes)
    elif (old := image.path.stat()).st_size < size_bytes or old.st_blocks * 512 < old.st_size:
        await asyncio.to_thread(_allocate, image.path, max(size_bytes, old.st_size))
        log.info("area_grown", image=str(image.path), bytes=size_bytes)
    await _mount(image)
    await _tune(image)
    await _fill(image)


async def _make(image: Image, size_bytes: int) -> None:
    """Make the file under another name and rename it when it is a file system; what a kill left there is replaced."""
    fresh = image.path.with_name(image.path.name + ".new")
    fresh.unlink(missing_ok=True)
    try:
        fresh.touch(0o600)
        if await mounts.filesystem_of(fresh.parent) == "btrfs":
            # a copy-on-write file needs new room for every overwrite: its fallocation would promise nothing
            await run("chattr", "+C", str(fresh))
        await asyncio.to_thread(_allocate, fresh, size_bytes)
        # two copies of metadata, also because their room is set apart now: with one copy that is 8 MiB, and a disk that
        # data fills to the end could then neither write metadata nor, therefore, delete
        await run(
            "mkfs.btrfs", "--quiet", "--nodiscard", "--metadata", "dup", "--data", "single",
            "--nodesize", str(image.node_bytes),
            "--label", image.label, str(fresh),
            timeout_s=120,
        )  # fmt: skip
        await asyncio.to_thread(files.sync_file, fresh)
        fresh.rename(image.path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    files.sync_dir(image.path.parent)
    log.info("area_made", image=str(image.path), bytes=size_bytes)


def _allocate(path: Path, size_bytes: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    finally:
        os.close(descriptor)


async def _mount(image: Image) -> None:
    found = mounts.mounted_at(image.mount_point)
    if found is not None:
        if found.source in await mounts.loops_of(image.path):
            return
        raise InvalidArgument(
            f"{image.mount_point} is a mount of {found.source}, not of {image.path}. Unmount it, or use another data "
            "folder, and start again."
        )
    label = (await run("btrfs", "filesystem", "label", str(image.path))).stdout.strip()
    if label != image.label:
        raise InvalidArgument(
            f"{image.path} belongs to another instance ({label!r}, not {image.label!r}): a data folder cannot be "
            "copied. Move it whole, or start with an empty one."
        )
    files.make_dir(image.mount_point, mode=0o711)
    await mounts.mount_image(image.path, image.mount_point, fstype="btrfs", options=image.options)


async def _tune(image: Image) -> None:
    """Set up the loop device; done each time, since a kill may have come between mounting and this."""
    for device in await mounts.loops_of(image.path):
        mounts.refuse_discards(device)
        # else every page is cached twice; where the host's file system cannot, the loop device goes on with its cache
        await run("losetup", "--direct-io=on", device, check=False)


async def _fill(image: Image) -> None:
    """Let the file system use the whole image; does the rest of a growth that a kill cut short."""
    space = os.statvfs(image.mount_point)
    if space.f_blocks * space.f_frsize + _SLACK_BYTES >= image.path.stat().st_size:
        return
    for device in await mounts.loops_of(image.path):
        await run("losetup", "--set-capacity", device)
    await run("btrfs", "filesystem", "resize", "max", str(image.mount_point))


async def commit(folder: Path) -> None:
    """Have the file system of a folder commit, so that the room of what was deleted is free; takes milliseconds.

    Unlike sync(2) it writes back nothing that guests have written. Other file systems have the room at once.
    """

    def act() -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            number = fcntl.ioctl(descriptor, _START_SYNC, bytes(8))
            fcntl.ioctl(descriptor, _WAIT_SYNC, number)
        except OSError as error:
            if error.errno != errno.ENOTTY:
                raise
        finally:
            os.close(descriptor)

    await asyncio.to_thread(act)


async def unmount(image: Image) -> None:
    """Unmount it and see its loop device gone; fine when it is not mounted. Raises Conflict while it is in use.

    A process in a mount namespace of its own, with a copy of our mounts, keeps the device; that is told in the log. The
    device then goes with that process, and serves again if the image is mounted before.
    """
    for _ in range(_UNMOUNT_TRIES):
        if mounts.mounted_at(image.mount_point) is None:
            break
        if (await run("umount", str(image.mount_point), check=False)).status != 0:
            await asyncio.sleep(_UNMOUNT_POLL_S)
    else:
        raise Conflict(
            f"{image.mount_point} is still in use. End what has files open there (`fuser -vm {image.mount_point}`) and "
            "run `space down` again."
        )
    for _ in range(_DEVICE_TRIES):
        if not (devices := await mounts.loops_of(image.path)):
            return
        for device in devices:
            await run("losetup", "--detach", device, check=False)
        await asyncio.sleep(_UNMOUNT_POLL_S)
    log.warning("area_device_kept", image=str(image.path), devices=devices)
