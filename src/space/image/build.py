"""Build a template: kernel, agent, initramfs, root filesystem, image, publish; each step kept by content.

One build at a time (a lock file): a second one waits, and mostly finds its work done. Everything is made in a `tmp-`
folder and appears by rename, so a build that fails, is cancelled or killed leaves nothing but finished steps in the
cache. Programs die with this process (see work.py); what a kill left in a `tmp-` folder, the next build deletes.
"""

import asyncio
import contextlib
import dataclasses
import datetime
import hashlib
import json
import tempfile
import uuid
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from space.host import files
from space.host.command import CommandError, run
from space.host.room import check_room
from space.image import agent, catalog, ext4, initramfs, kernel, recipe, rootfs
from space.image.recipe import Recipe
from space.image.work import exclusive, explained
from space.layout import Layout
from space.model.errors import InvalidArgument
from space.model.ids import TemplateDigest, is_template_name
from space.telemetry import logger
from space.wire.templates import BuildDone, BuildLog, BuildTemplate, TemplateModel

log = logger()

_FORMAT = 1
"""Raised when the way an image is made changes, so that old templates are not taken for new ones."""

_SYNC_TIMEOUT_S = 300
_SILENCE_S = 2.0
"""After this long without a line the build says that it is still at work."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """What every guest of this host is booted with."""

    kernel: kernel.Kernel
    agent: agent.Agent
    initrd: Path


class _Journal:
    """Collects the lines of a running build: those of the programs, and one at each step's begin and end."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[BuildLog | BuildDone | Exception] = asyncio.Queue()
        self.current = "prepare"
        self._began = asyncio.get_running_loop().time()

    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    def log(self, text: str) -> None:
        self._queue.put_nowait(self._line(text))

    def end(self, item: BuildDone | Exception) -> None:
        self._queue.put_nowait(item)

    async def next(self) -> BuildLog | BuildDone | Exception:
        """Return what came next, or after a silence a line that says so."""
        try:
            async with asyncio.timeout(_SILENCE_S):
                return await self._queue.get()
        except TimeoutError:
            if not self._queue.empty():  # it came at the same moment, and belongs before what is said now
                return self._queue.get_nowait()
            return self._line(f"Still at work ({self.elapsed_s():.0f} s).")

    def _line(self, text: str) -> BuildLog:
        return BuildLog(at_s=round(self.elapsed_s(), 3), step=self.current, text=text)

    @contextlib.contextmanager
    def step(self, name: str) -> Generator[None]:
        self.current, began = name, self.elapsed_s()
        self.log("Begins.")
        log.info("build_step_began", step=name)  # what a first `space up` waits for, when nobody reads the journal
        yield
        self.log(f"Done in {self.elapsed_s() - began:.1f} s.")


async def build(
    layout: Layout, wish: BuildTemplate, *, code_dir: Path, vmm: str
) -> AsyncGenerator[BuildLog | BuildDone]:
    """Build a template and yield its log, last BuildDone; a digest that is there already is not built again.

    `code_dir` holds `agent/` and `images/`; `vmm` names what will run it ("qemu 7.2.22 tcg") and is part of the digest.
    `wish.force` takes the newest kernel and packages. Raises BuildFailed naming the step, StorageFull, or
    InvalidArgument. Close the generator (`contextlib.aclosing`) to cancel the build.
    """
    if not is_template_name(wish.name):
        raise InvalidArgument(
            f"{wish.name[:80]!r} cannot name a template: use 1 to 63 characters of a-z, 0-9, '.', '_' and '-', "
            "beginning and ending with a letter or digit."
        )
    how = recipe.find(code_dir, wish.recipe) if wish.recipe else recipe.named_by(code_dir, wish.name)
    journal = _Journal()
    end: BuildDone | Exception | None = None
    async with asyncio.TaskGroup() as group:
        work = group.create_task(_job(layout, wish, how, code_dir, vmm, journal))
        try:
            while end is None:
                item = await journal.next()
                if isinstance(item, BuildLog):
                    yield item
                else:
                    end = item
        except GeneratorExit:
            # the reader has left; raised on, the group would wrap it and `aclose` fail
            pass
        finally:
            work.cancel()
    if isinstance(end, Exception):
        raise end
    if end is not None:
        yield end


async def boot_files(layout: Layout, code_dir: Path) -> tuple[Path, Path]:
    """Return (kernel, initramfs) for a guest that needs no root filesystem, making them where needed.

    Used before any template exists, to find out whether this host can run a guest. Raises as `build`.
    """
    parts = await boot_parts(layout, code_dir)
    return parts.kernel.vmlinuz, parts.initrd


async def boot_parts(layout: Layout, code_dir: Path) -> Parts:
    """Return what guests are booted with, made where needed. Raises as `build`."""
    journal = _Journal()
    async with _working(layout, journal):
        return await _boot_parts(layout, code_dir, journal, force=False)


async def _job(layout: Layout, wish: BuildTemplate, how: Recipe, code_dir: Path, vmm: str, journal: _Journal) -> None:
    """Build, and put the end into the queue: BuildDone, or the error (never raised, it would cancel the reader)."""
    try:
        async with _working(layout, journal):
            parts = await _boot_parts(layout, code_dir, journal, force=wish.force)
            with tempfile.TemporaryDirectory(dir=layout.disk_area, prefix="tmp-build-") as name:
                Path(name).chmod(0o711)  # as above; what lies in it has an unguessable name or a mode of its own
                done = await _build(layout, wish, how, parts, vmm, Path(name), journal)
        journal.end(done)
    except Exception as error:  # noqa: BLE001 - raised by the reader
        journal.end(error)


@contextlib.asynccontextmanager
async def _working(layout: Layout, journal: _Journal) -> AsyncGenerator[None]:
    """Hold the lock on builds, and turn what fails into an error that says what to do."""
    try:
        # apt's download method, another user, passes through here to a folder of its own
        files.make_dir(layout.cache_dir, mode=0o711)
        async with exclusive(layout.cache_dir / "build.lock", journal.log):
            await asyncio.to_thread(catalog.remove_leftovers, layout)
            yield
    except (CommandError, OSError, ValueError) as error:
        raise explained(journal.current, error, layout.data_dir) from error


async def _boot_parts(layout: Layout, code_dir: Path, journal: _Journal, *, force: bool) -> Parts:
    with journal.step("kernel"):
        found = await kernel.obtain(layout, journal.log, force=force)
    with journal.step("agent"):
        built = await agent.obtain(layout, code_dir, journal.log)
    with journal.step("initramfs"):
        initrd = await initramfs.obtain(layout, found, built)
    return Parts(found, built, initrd)


async def _build(
    layout: Layout, wish: BuildTemplate, how: Recipe, parts: Parts, vmm: str, work: Path, journal: _Journal
) -> BuildDone:
    with journal.step("root filesystem"):
        tar = await rootfs.obtain(layout, how, work, journal.log, force=wish.force)
    inputs: dict[str, str | int] = {
        "format": _FORMAT,
        "kernel": parts.kernel.digest,
        "agent": parts.agent.digest,
        "rootfs": tar.digest,
        "vmm": vmm,
        "disk_mib": wish.disk_mib,
    }
    hexdigest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    digest = TemplateDigest(f"sha256:{hexdigest}")
    if not wish.force and (kept := _kept(layout, digest, wish.name)) is not None:
        return BuildDone(template=kept, cached=True)
    fresh = work / "template"
    files.make_dir(fresh, mode=0o711)  # a VMM passes through to the kernel; the root filesystem is 0600
    with journal.step("image"):
        # what the step before deleted is free only after that
        await run("btrfs", "filesystem", "sync", str(layout.disk_area), timeout_s=_SYNC_TIMEOUT_S)
        check_room(layout.disk_area, how.room_mib * 1024**2, "The image")
        image = fresh / catalog.ROOTFS
        seed = uuid.UUID(bytes=bytes.fromhex(hexdigest)[:16], version=4)
        await ext4.make_image(tar, work, image, disk_mib=wish.disk_mib, seed=seed, log=journal.log)
        files.reflink(parts.kernel.vmlinuz, fresh / catalog.KERNEL, mode=0o644)
        files.reflink(parts.initrd, fresh / catalog.INITRD, mode=0o644)
    with journal.step("publish"):
        manifest = catalog.Manifest(
            digest=digest,
            name=wish.name,
            disk_mib=wish.disk_mib,
            used_bytes=image.stat().st_blocks * 512,
            kernel_release=parts.kernel.release,
            agent_version=parts.agent.version,
            vmm=vmm,
            built_at=datetime.datetime.now(datetime.UTC),
            build_s=round(journal.elapsed_s(), 3),
            inputs=inputs,
        )
        await asyncio.to_thread(catalog.finish, fresh, manifest)
        catalog.publish(layout, fresh, digest)
    template = _kept(layout, digest, wish.name)
    assert template is not None
    return BuildDone(template=template, cached=False)


def _kept(layout: Layout, digest: TemplateDigest, name: str) -> TemplateModel | None:
    """Return a complete template of this digest, named from now on; None where there is none or it is damaged."""
    try:
        catalog.read_manifest(layout, digest)
    except (OSError, ValueError):
        return None
    catalog.tag(layout, name, digest)
    template = catalog.find(layout, digest).template
    return TemplateModel.of(dataclasses.replace(template, name=name))
