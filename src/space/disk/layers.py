"""Layers of template builds on this host: the disk after a step, kept by what it was made of.

    <disk area>/layers/<key>/     layer.json, disk (none where the key stands for a finished template)

A layer appears by one rename, complete and synced, and never changes. All are cache: the least recently used ones go
when there are too many, and nothing is lost but time. A disk here was written by a guest: it is never mounted.
"""

import asyncio
import dataclasses
import datetime as dt
import os
import re
import shutil
import tempfile
from pathlib import Path

import pydantic

from space.disk.rootfs import reflink
from space.host import files
from space.host.room import RESERVE_BYTES, free_bytes
from space.layout import Layout
from space.telemetry import logger

MAX_LAYERS = 200
SHARE_PERCENT = 25
"""How much of the disk area the layers may take together, counting what each has more than the one before."""

HALF_MADE = "half-made-"
"""What the names of folders begin with in which builds put things together; other builds do not sweep them."""

_KEY = re.compile(r"[0-9a-f]{64}")
_DISK, _FACTS = "disk", "layer.json"


class LayerFacts(pydantic.BaseModel):
    """What layer.json says. `own_bytes`: what the disk takes more than that of the layer before."""

    own_bytes: int = 0
    template: str | None = None
    made_at: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a host; one process uses it."""

    layout: Layout

    @property
    def folder(self) -> Path:
        """Where they lie."""
        return self.layout.disk_area / "layers"

    def facts(self, key: str) -> LayerFacts | None:
        """Return what is known of a layer, and count it as used; None where there is none, or it is damaged."""
        try:
            found = LayerFacts.model_validate_json((self._at(key) / _FACTS).read_bytes())
            os.utime(self._at(key))
        except (OSError, pydantic.ValidationError):
            return None
        return found

    def has_disk(self, key: str) -> bool:
        """Tell whether the disk of a layer is here, and count it as used."""
        return self.facts(key) is not None and (self._at(key) / _DISK).exists()

    async def take(self, key: str, target: Path) -> None:
        """Make `target` a copy of a layer's disk that shares its blocks. Raises OSError where it has gone meanwhile."""
        await reflink(self._at(key) / _DISK, target)

    async def keep(self, key: str, disk: Path, own_bytes: int) -> None:
        """Keep a disk, which is used up, as the layer of this key, in place of one that is there."""
        await asyncio.to_thread(files.sync_file, disk)
        await asyncio.to_thread(self._publish, key, disk, LayerFacts(own_bytes=own_bytes, made_at=_now()))

    async def note(self, key: str, template: str) -> None:
        """Remember that the key stands for this finished template."""
        await asyncio.to_thread(self._publish, key, None, LayerFacts(template=template, made_at=_now()))

    async def trim(self) -> None:
        """Remove what is least recently used, until few enough are left and the area has room."""
        await asyncio.to_thread(self._trim)

    def _at(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key of a layer")  # it becomes part of a path
        return self.folder / key

    def _publish(self, key: str, disk: Path | None, facts: LayerFacts) -> None:
        files.make_dir(self.folder, mode=0o700)
        with tempfile.TemporaryDirectory(dir=self.layout.disk_area, prefix=HALF_MADE) as work:
            fresh = Path(work) / "layer"
            fresh.mkdir(mode=0o700)
            if disk is not None:
                disk.rename(fresh / _DISK)
            files.write_atomic(fresh / _FACTS, facts.model_dump_json())
            if self._at(key).exists():
                self._at(key).rename(Path(work) / "old")
            fresh.rename(self._at(key))
            files.sync_dir(self.folder)

    def _trim(self) -> None:
        """Remove layers, oldest use first. What is newest stays in any case: a build is about to go on from it."""
        if not self.folder.is_dir():
            return
        area = os.statvfs(self.layout.disk_area)
        bound = area.f_blocks * area.f_frsize * SHARE_PERCENT // 100
        known = [(at.stat().st_mtime, at, self._size(at)) for at in self.folder.iterdir()]
        known.sort(reverse=True)
        total = 0
        for number, (_, at, size) in enumerate(known):
            total += size
            crowded = number >= MAX_LAYERS or total > bound or free_bytes(self.layout.disk_area) < 2 * RESERVE_BYTES
            if size < 0 or (crowded and number > 0):
                shutil.rmtree(at, ignore_errors=True)
                logger().info("layer_removed", layer=at.name)

    @staticmethod
    def _size(at: Path) -> int:
        """Return what removing a layer may give back; -1 for one that is damaged."""
        try:
            return LayerFacts.model_validate_json((at / _FACTS).read_bytes()).own_bytes
        except (OSError, pydantic.ValidationError):
            return -1


def remove_half_made(layout: Layout) -> None:
    """Delete what a worker that was killed left of layers and uploads; only while nothing is being built."""
    for path in layout.disk_area.glob(f"{HALF_MADE}*"):
        shutil.rmtree(path, ignore_errors=True)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
