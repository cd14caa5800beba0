"""A frozen copy of a sandbox becomes a template: its disk in the catalog, its memory on the shelf."""

import asyncio
import datetime as dt
import hashlib
import tempfile
from pathlib import Path

from space.disk import frozen as storage
from space.disk import rootfs
from space.disk.frozen import Frozen
from space.disk.settlement import settle
from space.host import files
from space.image import catalog
from space.layout import Layout
from space.model.ids import SandboxId, TemplateDigest
from space.model.template import Template, TemplateKind
from space.worker.records import Entry
from space.worker.shelf import Shape


async def publish(layout: Layout, copy: Frozen, entry: Entry, name: str) -> Template:
    """Make a template of a committed copy, which is used up, and let `name` stand for it. Raises SnapshotDamaged.

    Its digest is of what is in it and of the size it wants, so one content has one digest.
    """
    began = dt.datetime.now(dt.UTC)
    settled = await settle(copy, (Shape(entry.template, entry.vcpus, entry.memory_mib).frozen(layout),))
    assert settled.digests is not None
    parts = [f"{part}={found}" for part, found in sorted(settled.digests.items())]
    text = " ".join([*parts, settled.template, str(settled.vcpus), str(settled.memory_mib), settled.vmm])
    digest = TemplateDigest(f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")
    base = catalog.find(layout, TemplateDigest(settled.template))
    inputs: dict[str, str | int] = {"template": settled.template}
    inputs.update({str(part): found for part, found in settled.digests.items()})
    with tempfile.TemporaryDirectory(dir=layout.disk_area, prefix=catalog.HALF_MADE) as work:
        fresh = Path(work) / "template"
        files.make_dir(fresh, mode=0o711)
        await rootfs.reflink(copy.disk, fresh / catalog.ROOTFS)
        files.reflink(base.kernel, fresh / catalog.KERNEL, mode=0o644)
        files.reflink(base.initrd, fresh / catalog.INITRD, mode=0o644)
        manifest = catalog.Manifest(
            digest=digest,
            name=name,
            disk_mib=base.template.disk_mib,
            used_bytes=copy.disk.stat().st_blocks * 512,
            kernel_release=base.template.kernel_release,
            agent_version=base.template.agent_version,
            vmm=settled.vmm,
            built_at=began,
            build_s=round((dt.datetime.now(dt.UTC) - began).total_seconds(), 3),
            inputs=inputs,
            kind=TemplateKind.SNAPSHOT,
            sandbox=SandboxId(entry.sandbox),
            memory=settled.with_memory,
            vcpus=settled.vcpus,
            memory_mib=settled.memory_mib,
        )
        await asyncio.to_thread(catalog.finish, fresh, manifest)
        catalog.publish(layout, fresh, digest)
    if settled.with_memory:
        target = Frozen(layout, Shape(digest, settled.vcpus, settled.memory_mib).name)
        await asyncio.to_thread(storage.discard, target)
        await asyncio.to_thread(storage.rename, copy, target, settled)
    else:
        await asyncio.to_thread(storage.discard, copy)
    catalog.tag(layout, name, digest)
    return catalog.find(layout, digest).template
