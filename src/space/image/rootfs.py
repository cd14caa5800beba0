"""The root filesystem of a template: Debian minbase, the tools an agent's task expects, and what its recipe adds.

mmdebstrap makes a tar of it, kept in the cache under the digest of the recipe; from the tar, `mke2fs -d` makes the
image without mounting anything. The mirrors are those of the host's own apt, else mmdebstrap's default. What a recipe
adds is put in by hooks of mmdebstrap, as root in the new system, and without a network.
"""

import asyncio
import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path

from space.host import files
from space.host.command import run
from space.host.room import HOST_CURE, check_room
from space.image import additions
from space.image.recipe import BASE_ROOM_MIB, Recipe
from space.image.work import Log, stream
from space.layout import Layout

SUITE = "bookworm"
PACKAGES = (
    "attr", "bash", "ca-certificates", "coreutils", "curl", "git", "iproute2", "less", "ncurses-base", "ncurses-bin",
    "procps", "python-is-python3", "python3", "sudo",
)  # fmt: skip
APT_OPTIONS = ("--aptopt=APT::Install-Recommends false",)
DPKG_OPTIONS = (
    "--dpkgopt=force-unsafe-io",  # no fsync for each file: a build that is cut short is thrown away
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
)
CUSTOMIZE = """\
#!/bin/sh
# $1 is the root of the new system
set -eu
cd "$1"
chroot . useradd --uid 1000 --user-group --create-home --shell /bin/bash user
chroot . passwd --quiet --lock root
printf 'user ALL=(ALL:ALL) NOPASSWD:ALL\\n' > etc/sudoers.d/user
chmod 0440 etc/sudoers.d/user
chroot . visudo --check --quiet
printf 'space\\n' > etc/hostname
printf '127.0.0.1\\tlocalhost\\n127.0.1.1\\tspace\\n::1\\tlocalhost ip6-localhost ip6-loopback\\n' > etc/hosts
rm -f etc/resolv.conf
printf 'nameserver 169.254.0.22\\n' > etc/resolv.conf
printf '/dev/vda / ext4 defaults,noatime 0 0\\n' > etc/fstab
printf 'LANG=C.UTF-8\\n' > etc/default/locale
: > etc/machine-id
sed -i /force-unsafe-io/d etc/dpkg/dpkg.cfg.d/99mmdebstrap
rm -f var/lib/dbus/machine-id etc/apt/apt.conf.d/99mmdebstrap
rm -rf var/cache/ldconfig/* var/log/*.log var/log/apt/*
"""
"""169.254.0.22 is the slot's end of the guest's link: the guest's only name server. The agent rewrites hostname, hosts
and machine-id for each sandbox."""

_DEBOOTSTRAP_TIMEOUT_S = 1500
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
BUILD_BYTES = BASE_ROOM_MIB * 1024**2
"""Room a build of `base` takes on the disk area for a moment."""

TAR_BYTES = 512 * 1024**2
"""Room the tar takes in the cache, with a margin."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tarball:
    """A root filesystem as a tar; `digest` is the SHA-256 of the file."""

    digest: str
    path: Path


def recipe_key(recipe: Recipe) -> str:
    """Return the SHA-256 over everything that decides what is in the tar: what is in this module, and the recipe."""
    base = [SUITE, PACKAGES, APT_OPTIONS, DPKG_OPTIONS, CUSTOMIZE]
    added = [recipe.packages, recipe.content, additions.SCRIPTS] if recipe.content else []
    return hashlib.sha256(json.dumps(base + added).encode()).hexdigest()


async def obtain(layout: Layout, recipe: Recipe, work: Path, log: Log, *, force: bool = False) -> Tarball:
    """Return the tar of the recipe, making it in `work` where the cache has none or with `force`.

    Raises CommandError, OSError or StorageFull. The caller holds the lock on the cache.
    """
    folder = layout.cache_dir / "rootfs"
    files.make_dir(folder, mode=0o700)
    key = recipe_key(recipe)
    tar, note = folder / f"{key}.tar", folder / f"{key}.json"
    if not force and (digest := _noted(tar, note)) is not None:
        log("Root filesystem of this recipe is there.")
        return Tarball(digest, tar)
    check_room(work, recipe.room_mib * 1024**2, "A root filesystem")
    check_room(folder, recipe.room_mib * 1024**2 // 2, "The archive of a root filesystem", HOST_CURE)
    hooks = await additions.prepare(layout, recipe, work, log)
    fresh = work / "rootfs.tar"
    await _debootstrap(work, fresh, recipe, hooks, log)
    digest = await asyncio.to_thread(sha256, fresh)
    note.unlink(missing_ok=True)
    await asyncio.to_thread(_keep, fresh, tar)
    files.write_atomic(note, json.dumps({"sha256": digest, "bytes": tar.stat().st_size}))
    return Tarball(digest, tar)


def _noted(tar: Path, note: Path) -> str | None:
    try:
        facts = json.loads(note.read_text())
        return str(facts["sha256"]) if facts["bytes"] == tar.stat().st_size else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _keep(fresh: Path, tar: Path) -> None:
    """Move the tar into the cache, which may be another file system."""
    beside = tar.with_name(f"tmp-{tar.name}")
    shutil.copyfile(fresh, beside)
    fresh.unlink()
    files.sync_file(beside)
    beside.rename(tar)


async def _debootstrap(work: Path, tar: Path, recipe: Recipe, hooks: list[Path], log: Log) -> None:
    script = work / "customize.sh"
    script.write_text(CUSTOMIZE)
    script.chmod(0o755)
    await stream(
        log,
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        f"--include={','.join(PACKAGES + recipe.packages)}",
        *APT_OPTIONS,
        *DPKG_OPTIONS,
        *await _host_options(),
        *(f"--customize-hook={hook}" for hook in (script, *hooks)),
        SUITE,
        str(tar),
        *await _mirrors(),
        timeout_s=_DEBOOTSTRAP_TIMEOUT_S,
        env={"TMPDIR": str(work)},
    )


async def _mirrors() -> list[str]:
    """Return apt lines for the suite from where the host gets it; none where the host is of another suite."""
    text = (
        await run(
            "apt-get",
            "indextargets",
            "--format",
            "$(ORIGIN) $(CODENAME) $(REPO_URI) $(COMPONENT)",
            "Created-By: Packages",
        )
    ).stdout
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.is_file() else ""
    suites = {SUITE, f"{SUITE}-updates", f"{SUITE}-security"}
    wanted = [line.split(" ") for line in text.splitlines()]
    found = [(w[1], w[2]) for w in wanted if len(w) == 4 and w[0] == "Debian" and w[1] in suites and w[3] == "main"]
    if SUITE not in {suite for suite, _ in found}:
        return []
    return list(dict.fromkeys(f"deb {signed}{uri} {suite} main" for suite, uri in found))


_PASSED_ON = re.compile(r'^(Acquire::(?:http|https)::Proxy|Acquire::Check-Valid-Until|Acquire::Retries) "([^"]+)";$')


async def _host_options() -> list[str]:
    """Return the host's own apt settings for reaching the archive: mmdebstrap's apt does not read them."""
    lines = (await run("apt-config", "dump")).stdout.splitlines()
    found = [_PASSED_ON.match(line) for line in lines]
    return [f'--aptopt={match[1]} "{match[2]}"' for match in found if match]


def sha256(path: Path) -> str:
    """Return the hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
