"""The volumes of this host: made and deleted, and mounted in guests.

    <disk area>/volumes/<id>            a subvolume; its server's user owns all in it
    <data>/worker/volumes/<id>.json     its record

A volume that is used has a server (volume_server.py); one that nobody has mounted or asked for lately has none. A
server that ends is started again, and every guest that has the volume mounted is connected anew: its requests waited.
"""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from space.guest import agent
from space.guest.agent import AgentError, AgentSilent
from space.guest.line import Line
from space.host import cgroup, files
from space.host.command import run
from space.host.room import check_room
from space.image import agent as programs
from space.layout import Layout
from space.model.errors import Conflict, NotFound, SpaceError, StorageFull, Unavailable
from space.telemetry import logger
from space.wire.agent import AgentVolume
from space.worker import volume_server
from space.worker.killing import kill_uids
from space.worker.ledger import Ledger
from space.worker.records import VolumeRecord
from space.worker.volume_server import VolumeServer

log = logger()
_IDLE_S, _LOOK_S = 60.0, 5.0
_MOUNT_S = 30.0
_FIRST_ROOM_BYTES = 64 * 1024**2


class Volumes:
    """Knows the servers and which VM has what mounted. One per worker."""

    def __init__(self, layout: Layout, code_dir: Path) -> None:
        self._layout, self._code_dir = layout, code_dir
        self._ledger = Ledger(layout.volume_records_dir, VolumeRecord)
        self._servers: dict[str, VolumeServer] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._busy: dict[str, int] = {}
        self._used_at: dict[str, float] = {}
        self._lines: dict[str, Line] = {}
        self._mounts: dict[str, list[AgentVolume]] = {}
        self._mounting: set[str] = set()
        self._connected: dict[str, list[VolumeServer]] = {}
        self._building = asyncio.Lock()

    def open(self) -> None:
        """Make the folders where they are missing."""
        self._ledger.open()
        files.make_dir(self._layout.volumes_dir, mode=0o711)

    def known(self) -> set[str]:
        """Return the ids of the volumes that are here."""
        return {record.volume for record in self._ledger.read()}

    # -- volumes -------------------------------------------------------------------------------------------------------

    async def create(self, volume: str, limit_bytes: int) -> None:
        """Make a volume; fine where it is there. Raises StorageFull."""
        async with self._lock(volume):
            records = {record.volume: record for record in self._ledger.read()}
            record = records.get(volume)
            if record is None:
                check_room(self._layout.disk_area, _FIRST_ROOM_BYTES, "A volume")
                record = VolumeRecord(volume=volume, uid_number=self._free_uid(records), limit_bytes=limit_bytes)
                self._ledger.write(volume, record, synced=True)
            folder = self._layout.volumes_dir / volume
            if not folder.exists():
                await run("btrfs", "subvolume", "create", str(folder))
            volume_server.prepare(self._layout, record)
        log.info("volume_made", volume=volume, limit_bytes=limit_bytes)

    def _free_uid(self, records: dict[str, VolumeRecord]) -> int:
        taken = {record.uid_number for record in records.values()}
        for uid in self._layout.volume_uids:
            if uid - self._layout.uid_base not in taken:
                return uid - self._layout.uid_base
        raise StorageFull(f"This worker has {len(taken)} volumes, as many as it can. Delete one.")

    async def delete(self, volume: str) -> None:
        """Delete a volume and all in it; fine where there is none. Raises Conflict while it is mounted."""
        async with self._lock(volume):
            if any(mount.volume == volume for mounts in self._mounts.values() for mount in mounts):
                raise Conflict("The volume is mounted in a sandbox. Delete that first.")
            await self._stop(volume)
            folder = self._layout.volumes_dir / volume
            if folder.exists():
                await run("btrfs", "subvolume", "delete", "--commit-after", str(folder))
            self._ledger.remove(volume)
        log.info("volume_deleted", volume=volume)

    # -- servers -------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def serving(self, volume: str) -> AsyncGenerator[VolumeServer]:
        """Have its server run while this is entered. Raises NotFound, Unavailable."""
        self._busy[volume] = self._busy.get(volume, 0) + 1
        try:
            yield await self._server(volume)
        finally:
            self._busy[volume] -= 1
            self._used_at[volume] = time.monotonic()

    async def _server(self, volume: str) -> VolumeServer:
        async with self._lock(volume):
            found = self._servers.get(volume)
            if found is not None and found.process.alive:
                return found
            record = next((each for each in self._ledger.read() if each.volume == volume), None)
            if record is None:
                raise NotFound(f"This worker has no volume {volume}.")
            await self._stop(volume)
            async with self._building:
                program = await programs.obtain(self._layout, self._code_dir, _log_build, "volumes")
            binary = _shown(self._layout, program.binary)
            self._servers[volume] = await volume_server.start(self._layout, binary, record)
            self._used_at[volume] = time.monotonic()
            log.info("volume_server_started", volume=volume)
            return self._servers[volume]

    async def _stop(self, volume: str) -> None:
        self._servers.pop(volume, None)
        record = next((each for each in self._ledger.read() if each.volume == volume), None)
        if record is not None:
            uid = self._layout.uid_base + record.uid_number
            await kill_uids(range(uid, uid + 1))
        await cgroup.remove(self._layout.instance, volume)

    def _lock(self, volume: str) -> asyncio.Lock:
        return self._locks.setdefault(volume, asyncio.Lock())

    # -- mounts --------------------------------------------------------------------------------------------------------

    async def mount(self, vm: str, line: Line, wanted: Sequence[AgentVolume]) -> None:
        """Have a guest mount these, or take up what it has mounted already; one that is connected is connected anew.

        Raises AgentError, AgentSilent, NotFound, Unavailable.
        """
        if not wanted:
            return
        self._lines[vm], self._mounts[vm] = line, list(wanted)
        self._mounting.add(vm)
        try:
            connected = [await self._connect(vm, line, each) for each in sorted(wanted, key=lambda mount: mount.path)]
        finally:
            self._mounting.discard(vm)
        if vm in self._mounts:
            self._connected[vm] = connected

    async def _connect(self, vm: str, line: Line, mount: AgentVolume) -> VolumeServer:
        async with self.serving(mount.volume) as server:
            guest = await agent.mount(line, mount, _MOUNT_S)
            with guest:  # the server has its own
                await server.attach(vm, guest)
            return server

    def has(self, vm: str) -> bool:
        """Tell whether the volumes of a VM are connected to servers that live."""
        return vm in self._connected and all(server.process.alive for server in self._connected[vm])

    async def let_go(self, vm: str) -> None:
        """End what a VM has mounted, after its end or shortly before; fine where there is nothing."""
        self._lines.pop(vm, None)
        self._connected.pop(vm, None)
        for each in self._mounts.pop(vm, []):
            server = self._servers.get(each.volume)
            if server is not None and server.process.alive:
                with contextlib.suppress(Unavailable):
                    await server.detach(vm)
                self._used_at[each.volume] = time.monotonic()

    async def run(self) -> None:
        """Connect guests again whose server ended, and end servers that nobody needs, for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            async with asyncio.TaskGroup() as group:
                for vm in list(self._mounts):
                    if vm not in self._mounting and not self.has(vm):
                        group.create_task(self._mount_again(vm))
            for volume in list(self._servers):
                users = any(mount.volume == volume for mounts in self._mounts.values() for mount in mounts)
                if not users and not self._busy.get(volume) and self._idle_s(volume) > _IDLE_S:
                    async with self._lock(volume):
                        await self._stop(volume)

    def _idle_s(self, volume: str) -> float:
        return time.monotonic() - self._used_at.get(volume, 0.0)

    async def _mount_again(self, vm: str) -> None:
        line, mounts = self._lines.get(vm), self._mounts.get(vm, [])
        if line is None:
            return
        log.warning("volume_server_ended", vm=vm)
        try:
            async with asyncio.timeout(_LOOK_S):  # a paused guest does not answer; it is connected when it goes on
                await self.mount(vm, line, mounts)
        except (AgentError, AgentSilent, SpaceError, OSError) as error:
            log.warning("volume_not_mounted_again", vm=vm, error=str(error))


async def end_servers(layout: Layout) -> None:
    """End every volume's server; guests that have a volume mounted wait until they are connected to the next."""
    await kill_uids(layout.volume_uids)
    ledger = Ledger(layout.volume_records_dir, VolumeRecord)
    for record in ledger.read():
        await cgroup.remove(layout.instance, record.volume)


def _shown(layout: Layout, binary: Path) -> Path:
    """Return the program where a server's user can read it; the cache is root's alone."""
    shown = layout.volumes_dir / f".{binary.name}"
    if not shown.exists():
        fresh = shown.with_suffix(".new")
        shutil.copyfile(binary, fresh)
        fresh.chmod(0o755)
        fresh.rename(shown)
    return shown


def _log_build(line: str) -> None:
    log.info("volume_server_built", line=line)
