"""What a build begins with: a template of this host, whose machine is booted or, where that is quicker, cloned."""

import dataclasses
from pathlib import Path

from space.disk.frozen import Frozen
from space.image import catalog
from space.image.build import Parts
from space.image.catalog import TemplateFiles
from space.model.build import State
from space.model.errors import SnapshotUnfit
from space.model.ids import TemplateDigest
from space.wire.builds import BuildSteps
from space.worker.host import Host
from space.worker.shelf import Shelf


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A disk to begin with, and the state it comes with. `frozen` is a machine that has it, ready to be cloned.

    `files` is of the template: its kernel and initramfs fit `frozen`, and builds keep its disk's size. `bare`: its
    disk was made for containers, and is to be furnished first.
    """

    key: str
    says: str
    disk: Path
    files: TemplateFiles
    state: State
    frozen: Frozen | None = None
    vcpus: int | None = None
    memory_mib: int | None = None
    starts: bool = False
    bare: bool = False


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
        return Source(digest, begins, files.rootfs, files, state, frozen, vcpus, memory_mib, starts=manifest.starts)
    same = (known.agent_version, known.kernel_release) == (parts.agent.version, parts.kernel.release)
    # one that starts something has it running in its clones, which would be in the way of what changes its files
    frozen = shelf.find(digest, wish.vcpus, wish.memory_mib) if same and not manifest.starts else None
    return Source(digest, begins, files.rootfs, files, state, frozen, starts=manifest.starts)
