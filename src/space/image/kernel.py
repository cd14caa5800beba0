"""The guest's kernel: Debian's cloud kernel, downloaded and unpacked but never installed.

Which version: the newest one that apt knows when the first build runs. That choice is pinned in the cache, and nothing
touches the network again until a build asks for fresh packages (`force`) or the cache is deleted; so templates built
on one host start the same kernel until somebody decides otherwise.

Only what a microVM needs is kept, by content, in `<disk area>/kernels/<sha256>/`.
"""

import asyncio
import dataclasses
import hashlib
import json
import lzma
import re
import shutil
import tempfile
from pathlib import Path

from space.host import files
from space.host.command import CommandError, run
from space.image.work import Log, stream
from space.layout import Layout
from space.model.errors import BuildFailed

PACKAGE = "linux-image-cloud-amd64"
MODULES = (
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_mmio",
    "drivers/block/virtio_blk",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
    "fs/fuse/fuse",
)
"""In loading order: each after what it depends on. ext4 is built into this kernel. fuse is for volumes."""

_APT_TIMEOUT_S = 300
_APT_GET = ("apt-get", "-q", "-o", "Acquire::Retries=1")
"""apt's own three tries, at each of two downloads and an update, make half a minute without a network."""

_IMAGE = re.compile(r"linux-image-[0-9][a-z0-9.+-]*-cloud-amd64")


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """An unpacked kernel; `modules` are uncompressed and in loading order."""

    digest: str
    release: str
    version: str
    vmlinuz: Path
    modules: tuple[Path, ...]


async def obtain(layout: Layout, log: Log, *, force: bool = False) -> Kernel:
    """Return the pinned kernel, unpacking or downloading it first where needed; `force` takes the newest there is.

    Raises CommandError, OSError or BuildFailed. The caller holds the lock on the cache.
    """
    pin_file = layout.cache_dir / "kernel.json"
    pin = None if force else _read_pin(pin_file)
    if pin is not None and (found := _installed(layout, pin)) is not None:
        log(f"Kernel {found.release} ({found.version}) is there.")
        return found
    if pin is None:
        pin = await _download(layout, log, force=force)
    kernel = await _unpack(layout, pin, log)
    files.write_atomic(pin_file, json.dumps(pin | {"digest": kernel.digest, "release": kernel.release}))
    return kernel


def _read_pin(path: Path) -> dict[str, str] | None:
    try:
        pin: dict[str, str] = json.loads(path.read_text())
        return pin if (path.parent / "debs" / pin["deb"]).is_file() else None
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _installed(layout: Layout, pin: dict[str, str]) -> Kernel | None:
    if "digest" not in pin:
        return None
    folder = layout.disk_area / "kernels" / pin["digest"]
    kernel = _kernel(folder, pin)
    return kernel if all(path.is_file() for path in (kernel.vmlinuz, *kernel.modules)) else None


def _kernel(folder: Path, pin: dict[str, str]) -> Kernel:
    return Kernel(
        digest=pin["digest"],
        release=pin["release"],
        version=pin["version"],
        vmlinuz=folder / "vmlinuz",
        modules=tuple(folder / "modules" / f"{Path(name).name}.ko" for name in MODULES),
    )


async def _download(layout: Layout, log: Log, *, force: bool) -> dict[str, str]:
    if force:
        await _update(log)
    try:
        return await _fetch(layout, log)
    except CommandError as error:
        if force:
            raise
        # the host's lists are missing, or so old that the archive has dropped what they name
        log(f"apt could not fetch it (status {error.status}); updating its lists.")
        await _update(log)
        return await _fetch(layout, log)


async def _update(log: Log) -> None:
    try:
        await stream(log, *_APT_GET, "update", timeout_s=_APT_TIMEOUT_S)
    except CommandError as error:
        # a source that has nothing to do with ours may be the one that failed; the download will tell
        log(f"apt-get update was not clean (status {error.status}); going on with the lists there are.")


async def _fetch(layout: Layout, log: Log) -> dict[str, str]:
    package = await _resolve()
    facts = (await run("apt-cache", "show", "--no-all-versions", package)).stdout
    version, digest = _field(facts, "Version"), _field(facts, "SHA256")
    log(f"Downloading {package} {version}.")
    keep = layout.cache_dir / "debs"
    files.make_dir(keep, mode=0o700)
    with tempfile.TemporaryDirectory(dir=layout.cache_dir, prefix="tmp-apt-") as name:
        # apt's download method runs as _apt and writes here itself, if it can reach the folder; the hash is checked
        # again below, once the file is root's alone
        shutil.chown(name, user="_apt")
        await stream(log, *_APT_GET, "download", f"{package}={version}", timeout_s=_APT_TIMEOUT_S, cwd=Path(name))
        shutil.chown(name, user="root")
        debs = list(Path(name).glob("*.deb"))
        if len(debs) != 1:
            raise BuildFailed(f"apt-get download {package} left {len(debs)} packages instead of one; build again.")
        target = keep / f"{package}_{digest[:16]}.deb"
        if await asyncio.to_thread(_sha256, debs[0]) != digest:
            raise BuildFailed(f"{package} {version} does not have the hash that apt's lists promise; build again.")
        await asyncio.to_thread(shutil.copyfile, debs[0], target)
    return {"package": package, "version": version, "deb": target.name}


async def _resolve() -> str:
    """Return the package that the meta package stands for, `linux-image-<release>-cloud-amd64`."""
    text = (await run("apt-cache", "depends", "--important", PACKAGE)).stdout
    found = _IMAGE.search(text)
    if found is None:
        raise BuildFailed(
            f"apt knows no kernel behind {PACKAGE}. It is in Debian's archive: SPACE takes the guest's kernel from "
            "there, so the host's apt sources must include Debian's main section."
        )
    return found.group()


def _field(facts: str, name: str) -> str:
    found = re.search(rf"^{name}: (\S+)$", facts, re.MULTILINE)
    if found is None:
        raise BuildFailed(f"apt tells no {name} of the kernel package; run apt-get update and build again.")
    return found.group(1)


async def _unpack(layout: Layout, pin: dict[str, str], log: Log) -> Kernel:
    kernels = layout.disk_area / "kernels"
    kernels.mkdir(exist_ok=True)
    deb = layout.cache_dir / "debs" / pin["deb"]
    with tempfile.TemporaryDirectory(dir=layout.disk_area, prefix="tmp-kernel-") as name:
        tree, fresh = Path(name) / "tree", Path(name) / "kernel"
        await stream(log, "dpkg-deb", "--extract", str(deb), str(tree), timeout_s=60)
        image = next(iter((tree / "boot").glob("vmlinuz-*")), None)
        if image is None:
            raise BuildFailed(f"{pin['package']} holds no boot/vmlinuz-*; build again with a newer package.")
        release = image.name.removeprefix("vmlinuz-")
        pin = pin | {"release": release, "digest": ""}
        fresh.mkdir()
        (fresh / "modules").mkdir()
        kernel = _kernel(fresh, pin)
        shutil.copyfile(image, kernel.vmlinuz)
        lib = next(path for path in (tree / "usr/lib/modules", tree / "lib/modules") if path.is_dir())
        for source, target in zip(MODULES, kernel.modules, strict=True):
            target.write_bytes(_module(lib / release / "kernel" / source))
        (fresh / "release").write_text(release + "\n")
        pin["digest"] = await asyncio.to_thread(_digest_tree, fresh)
        final = kernels / pin["digest"]
        for path in (fresh, fresh / "modules"):
            path.chmod(0o755)
        shutil.rmtree(final, ignore_errors=True)
        fresh.rename(final)
    files.sync_dir(kernels)
    log(f"Unpacked kernel {release}.")
    return _kernel(final, pin)


def _module(stem: Path) -> bytes:
    """Return a module's bytes; newer Debian kernels ship them compressed with xz."""
    if (plain := stem.with_name(f"{stem.name}.ko")).is_file():
        return plain.read_bytes()
    try:
        return lzma.decompress(plain.with_name(f"{plain.name}.xz").read_bytes())
    except FileNotFoundError:
        raise BuildFailed(f"This kernel package has no module {stem.name}; microVMs cannot start on it.") from None


def _digest_tree(folder: Path) -> str:
    """Return the SHA-256 over names and contents, and make the contents durable."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        path.chmod(0o644)
        total.update(f"{path.relative_to(folder)} {_sha256(path)}\n".encode())
        files.sync_file(path)
    return total.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
