"""The built templates of a host: one folder each, named by digest, and tags that point to them.

    <templates>/<64 hex>/          manifest.json, rootfs.ext4, vmlinuz, initrd
    <templates>/tags/<name>        the digest a name stood for when it was last built here

A folder appears by one rename, complete, and never changes. The authoritative meaning of a name is the control
plane's; tags are what it can rebuild it from.
"""

import contextlib
import dataclasses
import datetime
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

import pydantic

from space import telemetry
from space.host import files
from space.layout import Layout
from space.model.errors import NotFound
from space.model.ids import SandboxId, TemplateDigest, is_digest, is_template_name
from space.model.template import Template, TemplateKind

log = telemetry.logger()

MANIFEST = "manifest.json"
ROOTFS = "rootfs.ext4"
KERNEL = "vmlinuz"
INITRD = "initrd"
HALF_MADE = "tmp-snapshot-"
"""What the names of folders begin with in which snapshots are put together."""


class Defaults(pydantic.BaseModel):
    """How commands run that say nothing themselves; see model.build.State."""

    user: str
    workdir: str
    env: dict[str, str]


class Manifest(pydantic.BaseModel):
    """What manifest.json says. `inputs` is what the digest was made from, for a reader who asks why it changed."""

    digest: str
    name: str
    disk_mib: int
    used_bytes: int
    kernel_release: str
    agent_version: str
    vmm: str
    built_at: datetime.datetime
    build_s: float
    inputs: dict[str, str | int]
    kind: TemplateKind = TemplateKind.BUILT
    sandbox: SandboxId | None = None
    memory: bool = False
    vcpus: int | None = None
    memory_mib: int | None = None
    defaults: Defaults | None = None
    """Of one that was built from steps: what builds on it begin with. The image itself has it too, for its commands."""

    starts: bool = False
    """Whether a command of it is started at each boot."""


class Bootable(Protocol):
    """What a machine is booted with, whatever its disk."""

    @property
    def kernel(self) -> Path:
        """Its kernel."""
        ...

    @property
    def initrd(self) -> Path:
        """Its initramfs."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class BootFiles:
    """The files alone."""

    kernel: Path
    initrd: Path


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateFiles:
    """A template and the files a VM is started from; clone `rootfs`, only read the others."""

    template: Template
    rootfs: Path
    kernel: Path
    initrd: Path


def folder(layout: Layout, digest: TemplateDigest) -> Path:
    """Return where a template of this digest lies; raises NotFound for what is no digest, so it is safe in a path."""
    if not is_digest(digest):
        raise NotFound(f"{digest[:80]!r} is not a template digest (sha256:<64 hex>).")
    return layout.templates_dir / digest.removeprefix("sha256:")


def templates(layout: Layout) -> list[Template]:
    """Return the built templates, newest first, once for each name that points to them.

    One that no name points to any more has the name "". A damaged one is logged and left out.
    """
    names: dict[str, list[str]] = {}
    for name, digest in tags(layout).items():
        names.setdefault(digest, []).append(name)
    found: list[Template] = []
    for manifest_file in layout.templates_dir.glob(f"{'[0-9a-f]' * 64}/{MANIFEST}"):
        digest = TemplateDigest(f"sha256:{manifest_file.parent.name}")
        try:
            manifest = read_manifest(layout, digest)
        except (OSError, ValueError) as error:
            log.warning("template_damaged", template=digest, error=str(error))
            continue
        found.extend(_template(manifest, name) for name in sorted(names.get(digest, [""])))
    return sorted(found, key=lambda template: template.built_at, reverse=True)


def find(layout: Layout, digest: TemplateDigest) -> TemplateFiles:
    """Return a template's files; raises NotFound, which says how to build it."""
    at = folder(layout, digest)
    cure = "Build it with `space template build base`."
    try:
        manifest = read_manifest(layout, digest)
    except FileNotFoundError:
        raise NotFound(f"There is no template {digest} on this host. {cure}") from None
    except (OSError, ValueError) as error:
        raise NotFound(f"Template {digest} is damaged. {cure}") from error
    name = next((name for name, of in sorted(tags(layout).items()) if of == digest), "")
    return TemplateFiles(_template(manifest, name), at / ROOTFS, at / KERNEL, at / INITRD)


def remove(layout: Layout, digest: TemplateDigest) -> None:
    """Delete a template and its tags; fine when there is none. Sandboxes keep the blocks they share with it."""
    for name, of in tags(layout).items():
        if of == digest:
            (layout.templates_dir / "tags" / name).unlink(missing_ok=True)
    remove_files(layout, digest)


def remove_files(layout: Layout, digest: TemplateDigest) -> None:
    """Delete a template's folder, whole for every reader, and keep its tags; fine when there is none."""
    at = folder(layout, digest)
    if not at.exists():
        return
    with tempfile.TemporaryDirectory(dir=layout.disk_area, prefix="tmp-gone-") as gone:
        at.rename(Path(gone) / "template")
        files.sync_dir(layout.templates_dir)


def tags(layout: Layout) -> dict[str, str]:
    """Return the digest behind each name."""
    found = {}
    for path in layout.templates_dir.glob("tags/*"):
        if is_template_name(path.name) and is_digest(digest := path.read_text().strip()):
            found[path.name] = digest
    return found


def tag(layout: Layout, name: str, digest: TemplateDigest) -> None:
    """Let `name` stand for `digest` from now on."""
    at = layout.templates_dir / "tags"
    files.make_dir(at, mode=0o700)
    files.write_atomic(at / name, digest + "\n")


def read_manifest(layout: Layout, digest: TemplateDigest) -> Manifest:
    """Return a template's manifest; raises OSError or ValueError where it or a file it stands for is not right."""
    at = folder(layout, digest)
    manifest = Manifest.model_validate_json((at / MANIFEST).read_text())
    if manifest.digest != digest:
        raise ValueError(f"its manifest is of {manifest.digest}")
    if (at / ROOTFS).stat().st_size != manifest.disk_mib * 1024**2:
        raise ValueError(f"its {ROOTFS} has {(at / ROOTFS).stat().st_size} bytes, not {manifest.disk_mib} MiB")
    for name in (KERNEL, INITRD):
        if (at / name).stat().st_size == 0:
            raise ValueError(f"its {name} is empty")
    return manifest


def finish(fresh: Path, manifest: Manifest) -> None:
    """Make a folder with root filesystem, kernel and initramfs a whole template, on the disk for good. Blocks."""
    (fresh / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    for path in fresh.iterdir():
        files.sync_file(path)
    fresh.chmod(0o711)  # a VMM's user reads kernel and initramfs in it; the root filesystem stays root's
    files.sync_dir(fresh)


def publish(layout: Layout, fresh: Path, digest: TemplateDigest) -> None:
    """Let a finished folder of the disk area appear as a template, in place of one of the same digest.

    Nothing here waits, so that no cancellation comes between: milliseconds.
    """
    layout.templates_dir.mkdir(exist_ok=True)
    remove_files(layout, digest)
    fresh.rename(folder(layout, digest))
    files.sync_dir(layout.templates_dir)
    read_manifest(layout, digest)


def remove_leftovers(layout: Layout) -> None:
    """Delete what builds that were killed left half-made; the caller holds the lock on builds.

    Not what a snapshot is made in, which needs no lock: see `remove_half_made`.
    """
    for area in (layout.disk_area, layout.cache_dir):
        for path in area.glob("tmp-*"):
            if path.name.startswith(HALF_MADE):
                continue
            with contextlib.suppress(FileNotFoundError):  # a template's removal, which needs no lock, was faster
                shutil.rmtree(path)


def remove_half_made(layout: Layout) -> None:
    """Delete what a snapshot that was cut off left; only while none is being taken."""
    for path in layout.disk_area.glob(f"{HALF_MADE}*"):
        shutil.rmtree(path)


def _template(manifest: Manifest, name: str) -> Template:
    values = {field.name: getattr(manifest, field.name) for field in dataclasses.fields(Template)}
    return Template(**(values | {"digest": TemplateDigest(manifest.digest), "name": name}))
