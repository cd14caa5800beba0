"""What is mounted where, and image files mounted through loop devices.

`mount -o loop` makes the loop device free itself at the last unmount (LO_FLAGS_AUTOCLEAR) and reuses one that an image
already has, so an image has one device, and none once it is not mounted, whoever was killed when.
"""

import dataclasses
from pathlib import Path

from space.host.command import run


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/self/mountinfo, as far as it is needed."""

    source: str
    fstype: str


def mounted_at(path: Path) -> Mount | None:
    """Return the topmost mount whose mount point is exactly `path`, or None."""
    wanted = str(path.resolve())
    found = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if _unescape(before.split(" ")[4]) == wanted:
            fstype, source = after.split(" ")[:2]
            found = Mount(_unescape(source), fstype)
    return found


def _unescape(field: str) -> str:
    for octal, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(octal, plain)
    return field


async def filesystem_of(path: Path) -> str:
    """Return the type of the file system that holds `path`, as stat(1) names it ("btrfs", "ext2/ext3")."""
    return (await run("stat", "--file-system", "--format=%T", str(path))).stdout.strip()


async def loops_of(image: Path) -> list[str]:
    """Return the loop devices attached to this file, found by its inode."""
    if not image.exists():
        return []
    done = await run("losetup", "--associated", str(image), "--noheadings", "--output", "NAME")
    return done.stdout.split()


async def mount_image(image: Path, at: Path, *, fstype: str, options: str) -> None:
    """Mount a file system image; raises CommandError, with no loop device left behind."""
    await run("mount", "-t", fstype, "-o", f"loop,{options}", str(image), str(at), timeout_s=60)


def refuse_discards(device: str) -> None:
    """Let a loop device refuse discards, which would punch holes into its file (sysfs, queue/discard_max_bytes)."""
    Path("/sys/block", Path(device).name, "queue", "discard_max_bytes").write_text("0")
