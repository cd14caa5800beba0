"""Findings about SPACE itself on this host: its data folder, its port, its processes, what was left behind."""

import time
from pathlib import Path

import httpx2

from space.cli import folders, instance
from space.cli.client import address_of
from space.cli.finding import Finding, Level, needed, wanted
from space.cli.supervisor import Record, read_records
from space.cli.up import check_port
from space.host import netns
from space.host.mounts import filesystem_of
from space.host.process import start_time
from space.layout import RUN_ROOT, Layout
from space.model.errors import SpaceError
from space.settings import ClientSettings, HostSettings

_UNFIT = ("tmpfs", "ramfs", "overlayfs", "nfs", "v9fs", "smb2", "fuseblk")
"""File systems, as stat(1) names them, that lose the data at a reboot or make images slow or unsafe."""


async def findings(settings: HostSettings, layout: Layout | None) -> list[Finding]:
    """Return the state of the instance in the data folder; `layout` None means that there is none yet."""
    data_dir = settings.data_dir.resolve()
    pid = instance.holder(data_dir)
    found = [await _file_system(data_dir)]
    if layout is None:
        return [*found, Finding(Level.OK, "SPACE", f"not set up in {data_dir}"), _port(settings)]
    if pid is None:
        return [*found, _stopped(layout), _port(settings), *_strangers()]
    found.append(Finding(Level.OK, "SPACE", f"runs as {layout.instance} (pid {pid})"))
    found += [_daemon(record, layout) for record in read_records(folders.records_dir(layout))]
    return [*found, await _readiness(settings), *_strangers()]


async def _file_system(data_dir: Path) -> Finding:
    kind = await filesystem_of(next(path for path in (data_dir, *data_dir.parents) if path.exists()))
    how = "used as it is" if kind == "btrfs" else "btrfs images are made in it"
    cure = "Put the data folder on a local disk (--data); this kind forgets, or is slow with images."
    return wanted("data folder", f"{data_dir} on {kind}: {how}", kind not in _UNFIT, cure)


def _port(settings: HostSettings) -> Finding:
    what = "port"
    try:
        check_port(settings.host, settings.port)
    except SpaceError as error:
        return Finding(Level.BLOCKER, what, f"{settings.host}:{settings.port}", str(error))
    return Finding(Level.OK, what, f"{settings.host}:{settings.port} is free")


def _stopped(layout: Layout) -> Finding:
    slots = [name for name in netns.names(layout.netns_prefix) if name != layout.gateway_netns]
    if not layout.run_dir.exists():
        return Finding(Level.OK, "SPACE", f"{layout.instance} is stopped")
    return wanted(
        "SPACE",
        f"{layout.instance} is stopped, {len(slots)} network slots are kept for its VMs",
        not slots,
        "`space up` takes them over again; `space down` ends them.",
    )


def _daemon(record: Record, layout: Layout) -> Finding:
    alive = start_time(record.pid) == record.start_time
    up_s = time.time() - record.since
    state = record.state if alive else "dead"
    found = f"{state} for {up_s:.0f} s, restarted {record.restarts} times"
    log_file = layout.log_dir / f"{record.name}.log"
    return needed(f"  {record.name}", found, alive and record.state == "ready", f"Its log says why: {log_file}")


async def _readiness(settings: HostSettings) -> Finding:
    """Ask as a client would."""
    address = address_of(ClientSettings.model_validate({"data_dir": settings.data_dir}))
    try:
        async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=5) as http:
            answer = await http.get("/readyz")
    except httpx2.TransportError:
        return Finding(Level.BLOCKER, "port", f"no answer at {address}", "See the logs of edge and api.")
    found = f"{address}, SPACE's own: {'ready' if answer.is_success else answer.status_code}"
    return needed("port", found, answer.is_success, f"It says: {answer.text[:300]}")


def _strangers() -> list[Finding]:
    """Return what `space up` made for data folders that are gone: nothing will ever clean it up by itself.

    A run folder that nobody claimed is not ours to judge: a test that runs now may have made it.
    """
    lost = {claim.identity.instance: claim.data_dir for claim in instance.lost_claims()}
    return [
        Finding(
            Level.HINT,
            "left behind",
            f"instance {name}, whose data folder {data_dir} is gone",
            f"Restart the host, or end its processes (their names hold {name}) and delete {RUN_ROOT / name}.",
        )
        for name, data_dir in lost.items()
        if (RUN_ROOT / name).exists()
    ]
