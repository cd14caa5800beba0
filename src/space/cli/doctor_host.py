"""Findings about the machine: system, programs, room, memory, and what weakens the isolation of guests."""

import os
import platform
import shutil
from pathlib import Path

from space.cli.finding import Finding, needed, wanted
from space.host import command
from space.host.command import CommandError
from space.settings import search_path

_GIB = 1024**3
_ROOM_GOOD_GIB, _ROOM_LEAST_GIB = 10, 5
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


def resources(data_dir: Path) -> list[Finding]:
    """Return room on disk and in memory. A data folder that is in use has taken its room already."""
    place = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    free_gib = shutil.disk_usage(place).free / _GIB
    used = (data_dir / "instance.json").exists()
    room = f"{free_gib:.1f} GiB free at {place}"
    memory_gib = _available_memory() / _GIB
    memory = f"{memory_gib:.1f} GiB available"
    return [
        needed("disk", room, used or free_gib >= _ROOM_LEAST_GIB, f"Free {_ROOM_LEAST_GIB} GiB, or use another --data.")
        if free_gib < _ROOM_LEAST_GIB
        else wanted("disk", room, free_gib >= _ROOM_GOOD_GIB, "Templates and sandboxes will fill it soon."),
        needed("memory", memory, memory_gib >= _MEMORY_LEAST_GIB, "Free memory: a sandbox takes 512 MiB and more.")
        if memory_gib < _MEMORY_LEAST_GIB
        else wanted("memory", memory, memory_gib >= _MEMORY_GOOD_GIB, "Room for one or two sandboxes only."),
    ]


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
    return lines[0][:60] if lines else "present"


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
