"""Frozen VMs on storage: disk, memory and device state that belong together, and a manifest that says so.

    <disk area>/frozen/<name>/     manifest.json, disk, state; once settled: memory, digests (a table for each file)
    <memory area>/frozen/<name>    memory as the VM left it, ready to be mapped; may be gone once `memory` is stored

What is frozen never changes: VMs are started from reflinks and copies of it, and it is checked against its digests each
time (verification.py). It exists once its manifest does (one rename), and would survive a loss of power once the
manifest holds digests (settlement.py).
"""

import contextlib
import dataclasses
import datetime as dt
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic

from space.disk import chunks
from space.disk.chunks import Table
from space.host import files
from space.host.process import boot_id
from space.layout import Layout
from space.model.errors import SnapshotDamaged

Part = Literal["disk", "memory", "state"]
FORM = 2
"""Raised when what `digests` are of changes; one of an older form counts as not settled."""


class Manifest(pydantic.BaseModel):
    """What was frozen. `vmm` says what can take its memory up.

    `digests` is None until settled; then it has the digest of each part's table. `bases` are frozen VMs that it may
    share blocks with. They may be gone, or be others by now: nothing is believed for their names.
    """

    model_config = pydantic.ConfigDict(frozen=True)

    name: str
    generation: int
    template: str
    vcpus: int
    memory_mib: int
    vmm: str
    with_memory: bool
    frozen_at: dt.datetime
    boot: str = pydantic.Field(default_factory=boot_id)
    """The host's boot. One that was not settled before the host went down cannot be relied on."""
    lost: Part | None = None
    """What the host could not write: a second try would succeed, and prove nothing (fsync(2) tells an error once)."""
    form: int = FORM
    bases: tuple[str, ...] = ()
    digests: dict[Part, str] | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _settled_in_this_form(cls, data: Any) -> Any:
        """Forget the digests of another form."""
        if isinstance(data, dict) and data.get("form", 1) != FORM and data.get("digests") is not None:
            return data | {"form": FORM, "digests": None}
        return data

    @property
    def parts(self) -> tuple[Part, ...]:
        """What it consists of."""
        return ("disk", "memory", "state") if self.with_memory else ("disk",)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """Where one frozen VM lies; touches nothing by itself. `name` is ours, never a client's text."""

    layout: Layout
    name: str

    @property
    def folder(self) -> Path:
        """Where all of it lies but the hot memory."""
        return self.layout.disk_area / "frozen" / self.name

    @property
    def disk(self) -> Path:
        """The root filesystem."""
        return self.folder / "disk"

    @property
    def state(self) -> Path:
        """The VMM's device state; only with memory."""
        return self.folder / "state"

    @property
    def stored_memory(self) -> Path:
        """The memory as it was stored; there once it has settled."""
        return self.folder / "memory"

    @property
    def hot_memory(self) -> Path:
        """The memory as the VM left it, ready to be mapped; may have been given up."""
        return self.layout.memory_area / "frozen" / self.name

    @property
    def manifest_file(self) -> Path:
        """What makes it exist."""
        return self.folder / "manifest.json"

    @property
    def digests_file(self) -> Path:
        """The tables of its parts, one after another."""
        return self.folder / "digests"


def begin(frozen: Frozen) -> None:
    """Make an empty place for it; what an unfinished attempt left there is removed. Root's alone."""
    discard(frozen)
    for parent in (frozen.folder.parent, frozen.hot_memory.parent):
        parent.mkdir(mode=0o700, exist_ok=True)
    frozen.folder.mkdir(mode=0o700)


def commit(frozen: Frozen, manifest: Manifest) -> None:
    """Make it exist, or give it a new manifest: from here on it is found after a crash of ours.

    Synced only once it has digests: before, the files it speaks of are not synced either.
    """
    files.write_atomic(frozen.manifest_file, manifest.model_dump_json(), synced=manifest.digests is not None)


def read(frozen: Frozen) -> Manifest | None:
    """Return its manifest; None where it was never finished. Raises SnapshotDamaged for one that makes no sense."""
    try:
        return Manifest.model_validate_json(frozen.manifest_file.read_bytes())
    except FileNotFoundError:
        return None
    except pydantic.ValidationError as error:
        raise SnapshotDamaged(f"The manifest of snapshot {frozen.name} is damaged.") from error


def discard(frozen: Frozen) -> None:
    """Remove all of it, the manifest first; fine when there is nothing."""
    frozen.manifest_file.unlink(missing_ok=True)
    shutil.rmtree(frozen.folder, ignore_errors=True)
    frozen.hot_memory.unlink(missing_ok=True)


def distrust(frozen: Frozen) -> None:
    """Set its digests aside: it counts as damaged from now on, and nothing is compared with it."""
    with contextlib.suppress(FileNotFoundError):
        frozen.digests_file.rename(frozen.digests_file.with_suffix(".distrusted"))


def is_gone(frozen: Frozen) -> bool:
    """Tell whether there is no such frozen VM, or it was never finished."""
    return not frozen.manifest_file.exists()


def names(layout: Layout) -> set[str]:
    """Return the names of all that is or was to be frozen, unfinished ones too."""
    folders = (layout.disk_area / "frozen", layout.memory_area / "frozen")
    return {entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()}


def rename(source: Frozen, target: Frozen, manifest: Manifest) -> None:
    """Give a committed frozen VM another name; done twice or half before a crash, the rest is done again."""
    commit(source, manifest.model_copy(update={"name": target.name}))
    if source.hot_memory.exists():
        source.hot_memory.rename(target.hot_memory)
    source.folder.rename(target.folder)


def check_reached(frozen: Frozen, manifest: Manifest) -> None:
    """Raise SnapshotDamaged for one that is known not to have reached the disk, or may not have before a restart."""
    if manifest.lost is not None:
        raise SnapshotDamaged(f"The {manifest.lost} of snapshot {frozen.name} could not be written by the host.")
    if manifest.digests is None and manifest.boot != boot_id():
        raise SnapshotDamaged(
            f"Snapshot {frozen.name} was made just before the host was restarted, and had not reached the disk for "
            "certain; nothing was started."
        )


def write_tables(frozen: Frozen, tables: Mapping[Part, Table]) -> None:
    """Put the tables of its parts beside them, synced; they count once the manifest has their digests."""
    frozen.digests_file.write_bytes(b"".join(tables[part].encode() for part in sorted(tables)))
    files.sync_file(frozen.digests_file)


def read_tables(frozen: Frozen, manifest: Manifest) -> dict[Part, Table]:
    """Return the tables that a settled manifest speaks of; raises SnapshotDamaged where they are not those."""
    assert manifest.digests is not None
    found: dict[Part, Table] = {}
    try:
        encoded, at = frozen.digests_file.read_bytes(), 0
        for part in sorted(manifest.parts):
            found[part], at = chunks.decode(encoded, at)
    except (OSError, ValueError) as error:
        raise SnapshotDamaged(f"The digests of snapshot {frozen.name} cannot be read; nothing was started.") from error
    if {part: table.digest for part, table in found.items()} != manifest.digests:
        raise SnapshotDamaged(f"The digests of snapshot {frozen.name} are not what was written; nothing was started.")
    return found
