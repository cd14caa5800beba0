"""Building the base template with the real tools, on a real area. The first run downloads; later ones use the cache."""

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.support import build_cache
from tests.support.build_process import VMM

from space.disk import area
from space.host.command import run
from space.image import build, catalog
from space.image.ext4 import read_superblock
from space.layout import Layout
from space.model.errors import BuildFailed, InvalidArgument, NotFound, StorageFull
from space.model.ids import TemplateDigest
from space.wire.templates import BuildDone, BuildLog, BuildTemplate

MIB = 1024**2


@contextlib.asynccontextmanager
async def _instance(folder: Path, disk_gib: int) -> AsyncGenerator[Layout]:
    found = Layout(folder / "data", f"b{secrets.token_hex(2)[:3]}", 0x7000_0000)
    await area.prepare(found, disk_gib=disk_gib, memory_gib=1)
    build_cache.seed(found.cache_dir)
    shutil.copytree(build_cache.ROOT / "agent", found.data_dir / "code" / "agent")  # somebody may be editing the other
    yield found
    await area.release(found)
    shutil.rmtree(found.data_dir)  # gigabytes, which pytest would keep for three runs


@pytest.fixture(scope="module")
async def layout(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Layout]:
    async with _instance(tmp_path_factory.mktemp("build"), 4) as found:
        yield found


@pytest.fixture
async def small(base: BuildDone, tmp_path: Path) -> AsyncGenerator[Layout]:
    """An instance of its own, with everything in its cache and nothing built or deleted yet."""
    async with _instance(tmp_path, 2) as found:
        yield found


@pytest.fixture(scope="module")
async def base(layout: Layout) -> BuildDone:
    done = (await _build(layout, BuildTemplate(name="base")))[1]
    build_cache.keep(layout.cache_dir)
    return done


def _code(layout: Layout) -> Path:
    return layout.data_dir / "code"


async def _build(layout: Layout, wish: BuildTemplate, code_dir: Path | None = None) -> tuple[list[BuildLog], BuildDone]:
    log: list[BuildLog] = []
    lines_of = build.build(layout, wish, code_dir=code_dir or _code(layout), vmm=VMM)
    async with contextlib.aclosing(lines_of) as lines:
        async for line in lines:
            if isinstance(line, BuildDone):
                return log, line
            log.append(line)
    raise AssertionError("the build ended without an end")


def _process(layout: Layout, name: str, disk_mib: int) -> list[str]:
    """Return the command line that builds in a process of its own."""
    module = "tests.support.build_process"
    return [sys.executable, "-m", module, str(layout.data_dir), layout.instance, name, str(disk_mib)]


def _files(layout: Layout, done: BuildDone) -> catalog.TemplateFiles:
    return catalog.find(layout, TemplateDigest(done.template.digest))


def _half_made(layout: Layout) -> list[Path]:
    return [path for folder in (layout.disk_area, layout.cache_dir) for path in folder.glob("tmp-*")]


async def _debugfs(image: Path, request: str) -> str:
    return (await run("debugfs", "-R", request, str(image))).stdout


async def test_the_image_is_sparse_sound_and_has_a_journal(layout: Layout, base: BuildDone) -> None:
    image = _files(layout, base).rootfs
    found = read_superblock(image)
    assert found.journal
    assert found.clean
    assert found.size_bytes == image.stat().st_size == 10 * 1024 * MIB
    assert image.stat().st_blocks * 512 < 1024 * MIB
    await run("e2fsck", "-f", "-n", str(image))
    groups = re.findall(r"^Group [0-9]+:.*$", (await run("dumpe2fs", str(image))).stdout, re.MULTILINE)
    assert all("ITABLE_ZEROED" in group for group in groups), "a guest would write the tables itself"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/etc/passwd", "user:x:1000:1000::/home/user:/bin/bash\n"),
        ("/etc/sudoers.d/user", "user ALL=(ALL:ALL) NOPASSWD:ALL\n"),
        ("/etc/hosts", "127.0.0.1\tlocalhost\n"),
        ("/etc/resolv.conf", "nameserver "),
        ("/etc/default/locale", "LANG=C.UTF-8\n"),
        ("/etc/fstab", "/dev/vda / ext4 "),
    ],
)
async def test_what_the_files_say(layout: Layout, base: BuildDone, path: str, content: str) -> None:
    assert content in await _debugfs(_files(layout, base).rootfs, f"cat {path}")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/", "Mode:  0755"),
        ("/home/user", "User:  1000   Group:  1000"),
        ("/etc/sudoers.d/user", "Mode:  0440"),
        ("/etc/machine-id", "Size: 0"),
        ("/usr/bin/sudo", "Mode:  04755"),
        ("/usr/bin/python3", "Type: symlink"),
        ("/usr/bin/python", "Type: symlink"),
        *(
            (f"/usr/bin/{name}", "Type: regular")
            for name in ("bash", "git", "curl", "ps", "setfattr", "tput", "stat", "update-alternatives")
        ),
        ("/sbin", "Type: symlink"),
        ("/usr/bin/ip", "Type: regular"),
        ("/usr/share/terminfo", "Type: directory"),
        ("/etc/ssl/certs/ca-certificates.crt", "Type: regular"),
    ],
)
async def test_what_is_in_it(layout: Layout, base: BuildDone, path: str, says: str) -> None:
    found = await _debugfs(_files(layout, base).rootfs, f"stat {path}")
    assert " ".join(says.split()) in " ".join(found.split())


async def test_lists_and_documentation_are_left_out(layout: Layout, base: BuildDone) -> None:
    image = _files(layout, base).rootfs
    assert "Packages" not in await _debugfs(image, "ls -p /var/lib/apt/lists")
    assert "changelog" not in await _debugfs(image, "ls -p /usr/share/doc/bash")
    assert "unsafe" not in await _debugfs(image, "cat /etc/dpkg/dpkg.cfg.d/99mmdebstrap")
    assert ".deb" not in await _debugfs(image, "ls -p /var/cache/apt/archives")


async def test_the_initramfs_has_the_agent_and_modules_in_order(layout: Layout, base: BuildDone) -> None:
    files = _files(layout, base)
    listed = (await run("cpio", "--quiet", "-t", stdin=files.initrd.read_bytes())).stdout.split()
    assert {"init", "modules/order", "dev/console"} <= set(listed)
    assert next(name for name in listed if name.endswith(".ko")) == "modules/virtio_ring.ko"
    kernel, initrd = await build.boot_files(layout, _code(layout))
    assert (kernel.read_bytes(), initrd.read_bytes()) == (files.kernel.read_bytes(), files.initrd.read_bytes())


async def test_each_step_tells_its_begin_and_end(layout: Layout, base: BuildDone) -> None:
    log, _ = await _build(layout, BuildTemplate(name="steps", disk_mib=1024))
    for step in ("kernel", "agent", "initramfs", "root filesystem", "image", "publish"):
        texts = [line.text for line in log if line.step == step]
        assert texts[0] == "Begins."
        assert texts[-1].startswith("Done in ")


async def test_built_again_without_a_network_it_is_there(layout: Layout, base: BuildDone) -> None:
    """In a network namespace with nothing in it: a cached build may not so much as look up a name."""
    done = await run("unshare", "--net", *_process(layout, "base", 10 * 1024), cwd=build_cache.ROOT, timeout_s=60)
    found = BuildDone.model_validate_json(done.stdout.splitlines()[-1])
    assert found.cached
    assert found.template == base.template


async def test_without_network_and_cache_it_says_what_to_do(layout: Layout, tmp_path: Path) -> None:
    offline = Layout(tmp_path, "offl", layout.uid_base)
    offline.disk_area.mkdir()
    argv = _process(offline, "base", 1024)
    done = await run("unshare", "--net", *argv, cwd=build_cache.ROOT, timeout_s=120, check=False)
    assert "BuildFailed: Step 'kernel' failed" in done.stderr
    assert "check the network" in done.stderr
    assert _half_made(offline) == []


async def test_names_point_to_digests(layout: Layout, base: BuildDone) -> None:
    same = (await _build(layout, BuildTemplate(name="same")))[1]
    assert same.cached
    assert same.template.digest == base.template.digest
    other = (await _build(layout, BuildTemplate(name="same", disk_mib=1024)))[1]
    assert other.template.digest != base.template.digest
    found = {template.name: template.digest for template in catalog.templates(layout)}
    assert found["base"] == base.template.digest
    assert found["same"] == other.template.digest


async def test_of_two_builds_at_once_one_waits(layout: Layout, base: BuildDone) -> None:
    wish = BuildTemplate(name="twice", disk_mib=1536)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_build(layout, wish)) for _ in range(2)]
    (log, first), (other_log, second) = (task.result() for task in tasks)
    assert first.template == second.template
    assert sorted([first.cached, second.cached]) == [False, True]
    assert "Waiting for another build to end." in [line.text for line in log + other_log]


async def test_a_damaged_template_is_told_and_built_again(layout: Layout, base: BuildDone) -> None:
    wish = BuildTemplate(name="damaged", disk_mib=1152)
    digest = TemplateDigest((await _build(layout, wish))[1].template.digest)
    manifest = catalog.folder(layout, digest) / catalog.MANIFEST
    manifest.write_text(manifest.read_text()[:50])
    assert digest not in {template.digest for template in catalog.templates(layout)}
    with pytest.raises(NotFound, match="damaged"):
        catalog.find(layout, digest)
    again = (await _build(layout, wish))[1]
    assert not again.cached
    assert catalog.find(layout, digest).template.name == "damaged"


async def test_a_removed_template_is_gone_with_its_names(layout: Layout, base: BuildDone) -> None:
    digest = TemplateDigest((await _build(layout, BuildTemplate(name="gone", disk_mib=1280)))[1].template.digest)
    catalog.remove(layout, digest)
    catalog.remove(layout, digest)
    assert "gone" not in {template.name for template in catalog.templates(layout)}
    with pytest.raises(NotFound, match="space template build"):
        catalog.find(layout, digest)
    assert _half_made(layout) == []


async def test_a_cancelled_build_leaves_nothing(layout: Layout, base: BuildDone) -> None:
    wish = BuildTemplate(name="cancelled", disk_mib=1408)
    before = set(layout.templates_dir.iterdir())
    async with contextlib.aclosing(build.build(layout, wish, code_dir=_code(layout), vmm=VMM)) as lines:
        async for line in lines:
            if isinstance(line, BuildLog) and line.step == "image":
                break
    assert _half_made(layout) == []
    assert set(layout.templates_dir.iterdir()) == before


async def test_a_killed_build_leaves_no_process_and_the_next_tidies(layout: Layout, base: BuildDone) -> None:
    tar = next((layout.cache_dir / "rootfs").glob("*.tar"))
    hidden = tar.rename(layout.data_dir / "hidden.tar")
    try:
        process = subprocess.Popen(_process(layout, "killed", 1664), cwd=build_cache.ROOT, stdout=subprocess.DEVNULL)
        async with asyncio.timeout(60):
            while not list(layout.disk_area.glob("tmp-build-*/mmdebstrap.*/var/lib/dpkg")):
                assert process.poll() is None
                await asyncio.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        async with asyncio.timeout(10):
            while _running_in(layout.disk_area):
                await asyncio.sleep(0.05)
    finally:
        hidden.rename(tar)
    assert _half_made(layout) != []
    assert (await _build(layout, BuildTemplate(name="base")))[1].cached
    assert _half_made(layout) == []


def _running_in(folder: Path) -> list[str]:
    """Return the command lines of live processes that name `folder` or stand in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line or (process / "cwd").readlink().is_relative_to(folder):
                found.append(line)
    return found


async def test_a_full_area_is_told_and_nothing_is_left(small: Layout) -> None:
    """Once before anything is written, once when the room goes while the image is made."""
    wish = BuildTemplate(name="full", disk_mib=1792)
    filler = small.disk_area / "filler"
    await _fill(filler, 700 * MIB)
    with pytest.raises(StorageFull, match="held back"):
        await _build(small, wish)
    await _empty(filler)
    with pytest.raises(StorageFull, match="ran out of room"):
        await _build_while_filling(small, wish, filler)
    assert _half_made(small) == []
    assert list(small.templates_dir.iterdir()) == []
    await _empty(filler)
    assert (await _build(small, wish))[1].template.name == "full"


async def _build_while_filling(layout: Layout, wish: BuildTemplate, filler: Path) -> None:
    async with contextlib.aclosing(build.build(layout, wish, code_dir=_code(layout), vmm=VMM)) as lines:
        async for line in lines:
            if isinstance(line, BuildLog) and line.step == "image" and not filler.exists():
                await _fill(filler, 64 * MIB)


async def _empty(path: Path) -> None:
    """Delete a file, and have its room back now rather than in some seconds."""
    path.unlink(missing_ok=True)
    await run("btrfs", "filesystem", "sync", str(path.parent))


async def _fill(path: Path, leave_bytes: int) -> None:
    await _empty(path)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, area.free_bytes(path.parent) - leave_bytes)


async def test_an_agent_that_does_not_compile_is_told(layout: Layout, base: BuildDone, tmp_path: Path) -> None:
    command = tmp_path / "agent" / "cmd" / "agent"
    command.mkdir(parents=True)
    (tmp_path / "agent" / "go.mod").write_text("module broken\n\ngo 1.19\n")
    (command / "main.go").write_text("package main\n\nfunc main() { undefinedThing() }\n")
    with pytest.raises(BuildFailed, match=r"(?s)Step 'agent'.*undefinedThing"):
        await _build(layout, BuildTemplate(name="base"), tmp_path)
    with pytest.raises(BuildFailed, match="no agent source"):
        await _build(layout, BuildTemplate(name="base"), tmp_path / "agent")
    assert _half_made(layout) == []


async def test_a_name_that_cannot_be_a_name_is_refused(layout: Layout) -> None:
    with pytest.raises(InvalidArgument, match="cannot name a template"):
        await _build(layout, BuildTemplate(name="../base"))
    with pytest.raises(NotFound, match="not a template digest"):
        catalog.find(layout, TemplateDigest("sha256:../../etc"))
