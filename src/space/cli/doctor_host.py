"""Findings about the machine: system, programs, room, memory, and what weakens the isolation of guests."""

import os
import platform
import re
import shutil
import textwrap
from pathlib import Path

from space.cli.finding import Finding, Level, needed, wanted
from space.cli.output import human_bytes
from space.host import command
from space.host.command import CommandError
from space.host.mounts import mounted_at
from space.host.room import AREA_CURE, HOST_CURE, RESERVE_BYTES, free_bytes
from space.image import rootfs
from space.layout import Layout
from space.settings import search_path

_GIB = 1024**3
_ROOM_GOOD_GIB, _ROOM_LEAST_GIB = 10, 7
"""The least: the smallest areas take 5.6 GiB, a template's parts and the database 1 GiB."""

_MEMORY_GOOD_GIB, _MEMORY_LEAST_GIB = 3, 1

_PROGRAMS = (
    ("qemu-system-x86_64", "qemu-system-x86", "--version"),
    ("bwrap", "bubblewrap", "--version"),
    ("mkfs.btrfs", "btrfs-progs", "--version"),
    ("nft", "nftables", "--version"),
    ("ip", "iproute2", "-V"),
    ("ss", "iproute2", "-V"),
    ("setpriv", "util-linux", "--version"),
    ("nsenter", "util-linux", "--version"),
    ("mmdebstrap", "mmdebstrap", "--version"),
    ("mke2fs", "e2fsprogs", "-V"),
    ("apt-get", "apt", "--version"),
    ("dpkg-deb", "dpkg", "--version"),
    ("go", "golang-go", "version"),
)
"""What is run on the host: the program, its Debian package, how it tells its version."""

_VERSION = re.compile(r"\d+(?:\.\d+)+")


def system() -> list[Finding]:
    """Return who we are and on what."""
    uid = os.geteuid()
    release = _os_release()
    name = release.get("PRETTY_NAME", "unknown")
    tested = (release.get("ID"), release.get("VERSION_ID")) == ("debian", "12")
    machine = platform.machine()
    return [
        needed("root", f"uid {uid}", uid == 0, "Run `space up`, `space down` and `space doctor` with sudo."),
        wanted("system", name, tested, "SPACE is tested on Debian 12; others may work, with the programs named below."),
        needed("processor", machine, machine == "x86_64", "SPACE runs on x86-64."),
    ]


async def programs() -> list[Finding]:
    """Return whether each program is there, with its version."""
    found = []
    for name, package, option in _PROGRAMS:
        version = await _version(name, option) if shutil.which(name, path=search_path()) else "missing"
        found.append(needed(name, version, version != "missing", f"apt-get install {package}"))
    return found


def room(data_dir: Path, layout: Layout | None) -> list[Finding]:
    """Return room on the host's disk; and in the disk area, where an instance is there and its area is mounted."""
    place = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    free = free_bytes(place)
    found = f"{human_bytes(free)} free at {place}"
    if layout is None or not (data_dir / "mem.img").exists():
        if free < _ROOM_LEAST_GIB * _GIB:
            return [Finding(Level.BLOCKER, "disk", found, f"Free {_ROOM_LEAST_GIB} GiB, or use another --data.")]
        return [wanted("disk", found, free >= _ROOM_GOOD_GIB * _GIB, "Templates and sandboxes will fill it soon.")]
    need = rootfs.TAR_BYTES + RESERVE_BYTES
    cure = f"The first build of a template keeps its parts here and needs {human_bytes(need)}. {HOST_CURE}"
    findings = [wanted("disk", found, free >= need, cure)]
    if mounted_at(layout.disk_area) is not None:
        findings.append(_area_room(free_bytes(layout.disk_area)))
    return findings


def _area_room(free: int) -> Finding:
    found = f"{human_bytes(free)} free for sandboxes and templates"
    if free <= RESERVE_BYTES:
        return Finding(Level.BLOCKER, "disk area", found, f"No sandbox can be created. {AREA_CURE}")
    need = rootfs.BUILD_BYTES + RESERVE_BYTES
    return wanted("disk area", found, free >= need, f"A template's build needs {human_bytes(need)}. {AREA_CURE}")


def memory() -> Finding:
    """Return the memory that is free for guests."""
    free_gib = _available_memory() / _GIB
    found = f"{free_gib:.1f} GiB available"
    if free_gib < _MEMORY_LEAST_GIB:
        return Finding(Level.BLOCKER, "memory", found, "Free memory: a sandbox takes 512 MiB and more.")
    return wanted("memory", found, free_gib >= _MEMORY_GOOD_GIB, "Room for one or two sandboxes only.")


def isolation() -> list[Finding]:
    """Return what would let guests learn of each other, or leave their memory behind."""
    swaps = Path("/proc/swaps").read_text().splitlines()[1:]
    ksm = _sysfs("/sys/kernel/mm/ksm/run")
    smt = _sysfs("/sys/devices/system/cpu/smt/active")
    return [
        wanted(
            "swap",
            ", ".join(line.split()[0] for line in swaps) or "off",
            not swaps,
            "Guests' memory can be written to it: swapoff -a, or encrypt it.",
        ),
        wanted(
            "memory merging (KSM)",
            "on" if ksm == "1" else "off",
            ksm != "1",
            "Guests can find out what others hold in memory: echo 0 > /sys/kernel/mm/ksm/run",
        ),
        wanted(
            "hyper-threading (SMT)",
            "on" if smt == "1" else "off",
            smt != "1",
            "Guests of different owners can share a core; for hostile tenants: "
            "echo off > /sys/devices/system/cpu/smt/control",
        ),
    ]


async def _version(name: str, option: str) -> str:
    try:
        done = await command.run(name, option, timeout_s=20, check=False)
    except (CommandError, OSError) as error:
        return f"does not run: {error}"
    lines = (done.stdout or done.stderr).strip().splitlines()
    line = lines[0] if lines else "present"
    number = _VERSION.search(line)
    return number[0] if number else textwrap.shorten(line, 60)


def _os_release() -> dict[str, str]:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except FileNotFoundError:
        return {}
    return {name: value.strip('"') for name, equals, value in (line.partition("=") for line in lines) if equals}


def _available_memory() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _sysfs(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
