"""What one SPACE has on its host, beside what its database says it should have.

`difference` is empty where they are equal: every VMM process, slot, tap, link, group, file and frozen VM belongs to a
sandbox that the database has, or is a spare that the worker keeps, and every sandbox has what its state needs.
"""

import json
import re
from pathlib import Path
from typing import Any

from tests.support.deployment import Deployment, eventually

from space.disk import frozen
from space.host import cgroup, command, netns, process
from space.layout import UID_RANGE_SIZE, Layout
from space.net import slot
from space.store import db, embedded

Json = dict[str, Any]

_ROWS = """
SELECT id, state, desired, generation = observed_generation AS answered, lease_owner FROM sandboxes
 WHERE state <> 'deleted'"""
_UNDER_WAY = "SELECT id, kind FROM operations WHERE status = 'running'"
_VOLUMES = "SELECT id FROM volumes"
_TEMPLATES = "SELECT digest FROM templates"
_AWAKE = ("running", "paused")
_AREA = {"vms", "frozen", "templates", "kernels", "volumes"}


def layout_of(space: Deployment) -> Layout:
    """Return the paths and names of a deployment."""
    known = json.loads((space.data / "instance.json").read_text())
    return Layout(space.data, known["instance"], known["uid_base"])


async def difference(space: Deployment, *, slot_pool: int) -> list[str]:
    """Return in words how host and database differ. `slot_pool`: how many unused slots the worker keeps.

    What changes between two looks of it is told as a difference too, and an error of the moment (a process that is just
    starting) is raised.
    """
    layout = layout_of(space)
    async with db.connected(embedded.dsn(layout), connections=1) as database:
        rows = {row["id"]: dict(row) for row in await database.fetch(_ROWS)}
        under_way = [f"operation {row['kind']} {row['id']} runs" for row in await database.fetch(_UNDER_WAY)]
        templates = {row["digest"].removeprefix("sha256:") for row in await database.fetch(_TEMPLATES)}
        volumes = {row["id"] for row in await database.fetch(_VOLUMES)}
    entries = _records(layout.ledger_dir, "sandbox")
    spares = [spare["vm"] for spare in _records(layout.spares_dir, "vm").values()]
    owned = [entry["vm"] for entry in entries.values() if entry["vm"] is not None]
    return [
        *under_way,
        *_unsettled(rows),
        *_states(rows, entries),
        *await _vms(layout, [*owned, *spares], slot_pool),
        *_frozen(layout, entries, templates),
        *_compared("templates", templates, {path.name for path in layout.templates_dir.iterdir()} - {"tags"}),
        *_compared("disk area", _AREA, {path.name for path in layout.disk_area.iterdir()}),
        *_volumes(layout, volumes),
        *_compared("memory area", {"vms", "frozen"}, {path.name for path in layout.memory_area.iterdir()}),
    ]


async def until_equal(space: Deployment, what: str, *, slot_pool: int = 2, within_s: float = 120) -> None:
    """Wait until host and database are equal; fails with the differences that remain. `what` has led to this."""
    last: list[str] = []

    async def equal() -> bool:
        last[:] = await difference(space, slot_pool=slot_pool)
        return not last

    try:
        await eventually(equal, within_s=within_s, what=what)
    except AssertionError as error:
        raise AssertionError(f"host and database differ after {within_s:g} s ({what}):\n" + "\n".join(last)) from error


def _records(folder: Path, key: str) -> dict[str, Json]:
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return {str(record[key] if key != "vm" else record["vm"]["vm"]): record for record in found}


def _compared(what: str, wanted: set[str], found: set[str]) -> list[str]:
    lacking = [f"{what}: {name} is missing" for name in sorted(wanted - found)]
    return [*lacking, *(f"{what}: {name} is left over" for name in sorted(found - wanted))]


def _volumes(layout: Layout, volumes: set[str]) -> list[str]:
    """Return how the host's volumes and their servers differ from the database's volumes."""
    records = _records(layout.volume_records_dir, "volume")
    uids = {layout.uid_base + record["uid_number"] for record in records.values()}
    servers = {Path(f"/proc/{ref.pid}").stat().st_uid for ref in process.uid_processes(layout.volume_uids)}
    folders = {path.name for path in layout.volumes_dir.iterdir() if not path.name.startswith(".")}
    return [
        *_compared("volumes", volumes, folders),
        *_compared("records of volumes", volumes, set(records)),
        *(f"a volume's server of uid {uid} is left over" for uid in servers - uids),
    ]


def _unsettled(rows: dict[str, Json]) -> list[str]:
    return [
        f"row {one}: {row['state']}, wished {row['desired']}, held by {row['lease_owner']}"
        for one, row in rows.items()
        if not row["answered"] or row["state"] not in (*_AWAKE, "suspended", "failed")
    ]


def _states(rows: dict[str, Json], entries: dict[str, Json]) -> list[str]:
    found: list[str] = []
    for one, row in rows.items():
        held = entries[one]["state"] if one in entries else None
        if held != row["state"] and (held, row["state"]) != (None, "failed"):
            found.append(f"row {one} is {row['state']}, its worker has {held}")
    found += [f"the worker has {one}, which no row has" for one in entries.keys() - rows.keys()]
    for one, entry in entries.items():
        if (entry["vm"] is not None) != (entry["state"] in _AWAKE):
            found.append(f"{one} is {entry['state']} and its VM is {entry['vm']}")
    return found


async def _vms(layout: Layout, vms: list[Json], slot_pool: int) -> list[str]:
    names = {vm["vm"] for vm in vms}
    uids = {layout.vm_uid(vm["uid_number"]) for vm in vms}
    slots = {vm["slot"] for vm in vms}
    first = layout.vm_uid(0)
    running = process.uid_processes(range(first, layout.uid_base + UID_RANGE_SIZE))
    found_uids = {Path(f"/proc/{ref.pid}").stat().st_uid for ref in running}
    found_slots = slot.existing(layout)
    unused = found_slots - slots
    namespaces = set(netns.names(layout.netns_prefix)) - {layout.gateway_netns}
    links = await command.run("ip", "-n", layout.gateway_netns, "-br", "link")
    found = [
        *_compared("VMM processes of uid", {str(uid) for uid in uids}, {str(uid) for uid in found_uids}),
        *_compared("slots", {str(one) for one in slots}, {str(one) for one in found_slots - unused}),
        *_compared("namespaces", {layout.slot_netns(one) for one in found_slots}, namespaces),
        *_compared(
            "links of slots", {slot.link_name(one) for one in found_slots}, set(re.findall(r"\bsl\d+", links.stdout))
        ),
        *_compared("groups", names, cgroup.sandboxes(layout.instance)),
        *_compared("folders of disks", names, {path.name for path in (layout.disk_area / "vms").iterdir()}),
        *_compared("folders of memory", names, {path.name for path in (layout.memory_area / "vms").iterdir()}),
    ]
    if len(unused) != slot_pool:
        found.append(f"{len(unused)} slots are kept ready, not {slot_pool}: {sorted(unused)}")
    for one in found_slots:
        # one that goes at this moment has no devices either
        devices = (await command.run("ip", "-n", layout.slot_netns(one), "-br", "link", check=False)).stdout
        found += [f"slot {one} has no {device}" for device in ("tap0", "up0") if device not in devices]
    return found


def _frozen(layout: Layout, entries: dict[str, Json], templates: set[str]) -> list[str]:
    """Compare frozen VMs: the last suspension of each sandbox that has slept, and those of templates, of any size."""
    wanted = {f"s-{one}-{entry['generation']}" for one, entry in entries.items() if entry["generation"]}
    there = {path.name for path in (layout.disk_area / "frozen").iterdir()}
    ours = {name for name in there if not (name.startswith("t-") and name.split("-")[1] in templates)}
    hot = {path.name for path in (layout.memory_area / "frozen").iterdir()}
    unfinished = [name for name in there if frozen.read(frozen.Frozen(layout, name)) is None]
    return [
        *_compared("frozen VMs", wanted, ours),
        *_compared("hot memory without its frozen VM", set(), hot - there),
        *_compared("unfinished frozen VMs", set(), set(unfinished)),
    ]
