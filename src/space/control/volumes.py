"""Use cases on volumes: make, find, delete, mount in a new sandbox, and reach their content.

A row is written before its worker is asked for anything, and says so: what a process that died left half made is taken
up by the next create of that name, and half deleted by the next delete.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Sequence

from space.control.plane import Plane
from space.model.errors import Conflict, InvalidArgument, NotFound, Unauthorized
from space.model.ids import ProjectId, VolumeId, WorkerId, new_id
from space.model.volume import DEFAULT_SIZE_MIB, Mount, Volume, check_name, check_paths, check_size
from space.store import volumes
from space.store.db import Queries
from space.wire.volumes import ContentAnswer, VolumesClient

_CONTENT = "volume content"
_PREFIX = "vol_"
_MIB = 1024**2


async def create(plane: Plane, project: ProjectId, name: str, size_mib: int | None = None) -> Volume:
    """Make a volume; `size_mib` None takes the default. Raises InvalidArgument, Conflict (name), StorageFull."""
    check_name(name)
    size = DEFAULT_SIZE_MIB if size_mib is None else size_mib
    check_size(size)
    row = await volumes.begin(plane.db, VolumeId(new_id()), project, name, plane.workers.place(), size)
    if row is None:
        raise Conflict(f"There is a volume {name} already, or it is being deleted.", code="name_taken")
    await _client(plane, row).create(row.id, row.size_mib * _MIB)
    await volumes.ready(plane.db, row.id)
    return row


async def get(plane: Plane, project: ProjectId, name_or_id: str) -> Volume:
    """Return one of the project's; raises NotFound."""
    found = await volumes.find(plane.db, project, name_or_id)
    if found is None:
        raise NotFound(f"There is no volume {name_or_id[:80]!r}.")
    return found


async def listed(plane: Plane, project: ProjectId) -> list[Volume]:
    """Return the project's, oldest first."""
    return await volumes.listed(plane.db, project)


async def delete(plane: Plane, project: ProjectId, name_or_id: str) -> None:
    """Delete a volume and all in it. Raises NotFound, and Conflict while a sandbox has it, a suspended one too."""
    async with plane.db.transaction() as tx:
        row = await volumes.lock(tx, project, name_or_id)
        if row is None:
            raise NotFound(f"There is no volume {name_or_id[:80]!r}.")
        users = await volumes.users(tx, row.id)
        if users:
            raise Conflict(f"Volume {row.name} is mounted in {', '.join(users)}. Delete these sandboxes first.")
        await volumes.begin_delete(tx, row.id)
    await _client(plane, row).delete(row.id)
    await volumes.forget(plane.db, row.id)


async def mounted(
    tx: Queries, project: ProjectId, wanted: Sequence[tuple[str, str]]
) -> tuple[tuple[Mount, ...], WorkerId | None]:
    """Return the mounts for (name, path) of each volume, and the worker that has them; None without any.

    They stay until the transaction ends. Raises InvalidArgument, NotFound.
    """
    check_paths([path for _, path in wanted])
    found = await volumes.named(tx, project, [name for name, _ in wanted])
    missing = [name for name, _ in wanted if name not in found]
    if missing:
        raise NotFound(f"There is no volume {missing[0][:80]!r}.")
    workers = {volume.worker for volume in found.values()}
    if len(workers) > 1:
        raise InvalidArgument("These volumes are not on one host, and a sandbox runs on one. Mount fewer.")
    return tuple(Mount(found[name].id, name, path) for name, path in wanted), next(iter(workers), None)


def token(plane: Plane, volume: VolumeId) -> str:
    """Return what gives access to a volume's content, as long as it is there."""
    return _PREFIX + plane.vault.sign(volume, _CONTENT)


@contextlib.asynccontextmanager
async def content(
    plane: Plane,
    volume: str,
    shown_token: str,
    part: str,
    method: str,
    query: str,
    body: AsyncIterable[bytes] | None,
) -> AsyncGenerator[ContentAnswer]:
    """Ask for content of a volume, of whichever project, for whoever shows its token.

    Raises Unauthorized, NotFound, Unavailable.
    """
    if not shown_token.startswith(_PREFIX) or not plane.vault.signed(volume, _CONTENT, shown_token[len(_PREFIX) :]):
        raise Unauthorized("A volume's content needs that volume's token: `Authorization: Bearer vol_...`.")
    row = await volumes.of_any(plane.db, volume)
    if row is None:
        raise NotFound(f"There is no volume {volume[:80]!r}.")
    async with _client(plane, row).content(row.id, part, method, query, body) as answer:
        yield answer


def _client(plane: Plane, row: Volume) -> VolumesClient:
    return VolumesClient(plane.workers.client(row.worker))
