"""Looks after the frozen templates: reads all their blocks now and then, which sandboxes that share them do not.

One that is damaged is no longer cloned, and nothing that shares its blocks is believed without reading. It is made anew
when it is next asked for, where that can be done.
"""

import asyncio
import os
import time

from space.disk import frozen as storage
from space.disk.copies import warm
from space.disk.frozen import Frozen, Manifest
from space.disk.verification import verify_whole
from space.layout import Layout
from space.model.errors import SnapshotDamaged, SpaceError
from space.telemetry import logger

log = logger()
_EVERY_S = 24 * 3600.0
_POLL_S = 600.0


async def watch_over(layout: Layout) -> None:
    """Check each template when it is due, for ever."""
    while True:
        for name in sorted(storage.names(layout)):
            if name.startswith("t-"):
                await look_at(Frozen(layout, name))
        await asyncio.sleep(_POLL_S)


async def look_at(frozen: Frozen) -> None:
    """Have its hot memory there, and verify all of it where that is due. What is damaged is set aside."""
    try:
        manifest = storage.read(frozen)
        if manifest is None or manifest.digests is None or not frozen.digests_file.exists():
            return
        await warm(frozen)
        if _is_due(frozen):
            await _check(frozen, manifest)
    except SnapshotDamaged as error:
        log.error("template_snapshot_damaged", snapshot=frozen.name, error=str(error))  # noqa: TRY400 - no fault of ours
        storage.distrust(frozen)
    except (SpaceError, OSError) as error:
        log.warning("template_snapshot_not_checked", snapshot=frozen.name, error=str(error))


async def _check(frozen: Frozen, manifest: Manifest) -> None:
    began = time.monotonic()
    try:
        await verify_whole(frozen, manifest)
    except SnapshotDamaged as error:
        if not (frozen.hot_memory.exists() and frozen.stored_memory.exists()):
            raise
        # the memory area keeps no checksums, and what is stored may be whole
        log.warning("template_memory_taken_from_storage", snapshot=frozen.name, error=str(error))
        frozen.hot_memory.unlink()
        await verify_whole(frozen, manifest)
        await warm(frozen)
    os.utime(frozen.digests_file)
    log.info("template_snapshot_verified", snapshot=frozen.name, ms=round(1e3 * (time.monotonic() - began)))


def _is_due(frozen: Frozen) -> bool:
    """Tell whether it was last read too long ago, before this start of the host, or at a time that is yet to come."""
    age_s = time.time() - frozen.digests_file.stat().st_mtime
    return not 0 <= age_s < min(_EVERY_S, time.clock_gettime(time.CLOCK_BOOTTIME))
