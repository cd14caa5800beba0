"""What a build begins with: a template of this host, whose machine is booted or, where that is quicker, cloned; or an
image of a registry."""

import dataclasses
import shlex
from pathlib import Path

from space.disk.frozen import Frozen
from space.image import catalog
from space.image.build import Parts
from space.image.catalog import TemplateFiles
from space.image.oci import Image
from space.model.build import State
from space.model.errors import SnapshotUnfit
from space.model.ids import TemplateDigest
from space.model.template import DEFAULT_DISK_MIB
from space.wire.builds import BuildSteps
from space.worker.host import Host
from space.worker.shelf import Shelf


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Where the disk is from, and the state it comes with. `key` says what it is, `says` for a log.

    `disk` is a template's; `frozen` is a machine that has it, ready to be cloned on its own `vcpus` and `memory_mib`
    with `files`. An image's disk has to be pulled first. `start` is what it starts unless the build says otherwise, and
    `starts` that something is started already.
    """

    key: str
    says: str
    state: State
    disk_mib: int
    disk: Path | None = None
    image: Image | None = None
    files: TemplateFiles | None = None
    frozen: Frozen | None = None
    vcpus: int | None = None
    memory_mib: int | None = None
    starts: bool = False
    start: str | None = None


def of_template(host: Host, shelf: Shelf, wish: BuildSteps, digest: str, parts: Parts) -> Source:
    """Return a template as a source. Raises NotFound, SnapshotUnfit."""
    files = catalog.find(host.layout, TemplateDigest(digest))
    manifest = catalog.read_manifest(host.layout, TemplateDigest(digest))
    said = manifest.defaults
    state = State() if said is None else State(said.user, said.workdir, said.env)
    known = files.template
    begins = f"FROM template {known.name or digest}"
    if shelf.keeps_state(digest):
        vcpus, memory_mib = known.vcpus or wish.vcpus, known.memory_mib or wish.memory_mib
        frozen = shelf.find(digest, vcpus, memory_mib)
        if frozen is None:
            raise SnapshotUnfit("The snapshot's memory cannot be taken up here: it was made by another VMM.")
        return Source(
            digest, begins, state, known.disk_mib, files.rootfs, None, files, frozen, vcpus, memory_mib, manifest.starts
        )
    same = (known.agent_version, known.kernel_release) == (parts.agent.version, parts.kernel.release)
    # one that starts something has it running in its clones, which would be in the way of what changes its files
    frozen = shelf.find(digest, wish.vcpus, wish.memory_mib) if same and not manifest.starts else None
    return Source(digest, begins, state, known.disk_mib, files.rootfs, None, files, frozen, starts=manifest.starts)


def of_image(image: Image, *, container: bool) -> Source:
    """Return an image as a source; its environment holds in either case."""
    key, says = f"image {image.digest} {DEFAULT_DISK_MIB}", f"FROM {image.name}"
    if not container:
        return Source(key, says, State(env=image.env), DEFAULT_DISK_MIB, image=image)
    user = "root" if image.user in ("", "0") else image.user
    state = State(user, image.workdir or "/", image.env)
    start = shlex.join(image.start) if image.start else None
    return Source(key, says, state, DEFAULT_DISK_MIB, image=image, start=start)
