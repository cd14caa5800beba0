"""One volume's server process on this host: started in a jail, asked over two sockets, ended.

It is our Go program `agent/cmd/volumes`, whose head says what it serves. The jail is that of a VMM: an own user id that
has nothing but the volume's files, an empty network, no capability, the volume and the program all there is to see. So
a guest that takes it over has what it had before. It outlives the worker; the next one ends it and starts another, and
the guests' requests wait meanwhile.
"""

import asyncio
import json
import os
import socket
from pathlib import Path

import pydantic

from space.host import cgroup, files
from space.host.daemon import User
from space.host.process import Watched
from space.host.room import RESERVE_BYTES
from space.layout import Layout
from space.model.errors import Unavailable
from space.vmm import jail
from space.vmm.driver import VmmError
from space.vmm.jail import Jail
from space.vmm.launch import Log, launch
from space.wire.serving import bind_unix
from space.worker.records import VolumeRecord

_LIMITS = cgroup.Limits(memory_bytes=320 * 1024**2, processes=256, cpu_weight=100)
"""The program keeps itself below 160 MiB; the rest is what the kernel caches for it."""

_OPEN_FILES = 65536
_SLACK_BYTES = 1024**2
_ANSWER_S = 10.0


class _Answer(pydantic.BaseModel):
    error: str = ""


class VolumeServer:
    """A running server; `ended` when its process is gone."""

    def __init__(self, layout: Layout, record: VolumeRecord, process: Watched) -> None:
        self.record, self.process = record, process
        self._run_dir = layout.volume_run_dir(record.volume)

    @property
    def content_socket(self) -> Path:
        """Where it serves the volume's content over HTTP."""
        return self._run_dir / "content.sock"

    async def attach(self, vm: str, guest: socket.socket) -> None:
        """Hand it a connection to a guest. Raises Unavailable."""
        await self._order({"do": "attach", "vm": vm}, guest)

    async def detach(self, vm: str) -> None:
        """End its connections to a VM; fine where there are none. Raises Unavailable."""
        await self._order({"do": "detach", "vm": vm}, None)

    async def _order(self, order: dict[str, str], guest: socket.socket | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
                raw.setblocking(False)
                async with asyncio.timeout(_ANSWER_S):
                    await loop.sock_connect(raw, str(self._run_dir / "control.sock"))
                    socket.send_fds(raw, [json.dumps(order).encode()], [] if guest is None else [guest.fileno()])
                    answer = b""
                    while part := await loop.sock_recv(raw, 65536):
                        answer += part
            said = _Answer.model_validate_json(answer)
        except (OSError, TimeoutError, pydantic.ValidationError) as error:
            raise Unavailable("The volume's server does not answer. Try again.") from error
        if said.error:
            raise Unavailable(f"The volume's server refused: {said.error}.")


async def start(layout: Layout, binary: Path, record: VolumeRecord) -> VolumeServer:
    """Start the server of a volume that is there; orders wait until it serves. Raises Unavailable, OSError."""
    uid = layout.uid_base + record.uid_number
    user = User(uid, uid)
    run_dir = layout.volume_run_dir(record.volume)
    files.make_dir(run_dir, mode=0o700)
    cgroup.create(layout.instance, record.volume, _LIMITS)
    in_userns = await jail.user_namespaces(user)
    walls = Jail(
        user=user,
        program_files=() if in_userns else await jail.dropper_files(),
        read_only=((binary, "/volumes"),),
        writable=((layout.volumes_dir / record.volume, "/volume"),),
        devices=(),
        file_size_bytes=record.limit_bytes + _SLACK_BYTES,
    )
    log = Log(run_dir / "log", make=True)
    try:
        with (
            bind_unix(run_dir / "content.sock", mode=0o600) as content,
            bind_unix(run_dir / "control.sock", mode=0o600) as control,
        ):
            program = (
                "/volumes",
                f"-content-fd={content.fileno()}",
                f"-control-fd={control.fileno()}",
                f"-limit-bytes={record.limit_bytes}",
                f"-reserve-bytes={RESERVE_BYTES}",
            )

            def jailed(info_fd: int, block_fd: int) -> tuple[str, ...]:
                return jail.argv(walls, program, in_user_namespace=in_userns, info_fd=info_fd, block_fd=block_fd)

            launched = await launch(
                jailed,
                log=log,
                pass_fds=(content.fileno(), control.fileno()),
                settle=lambda pid: cgroup.enter(layout.instance, record.volume, pid),
                open_files=_OPEN_FILES,
            )
    except VmmError as error:
        raise Unavailable("The volume's server did not start; see the worker's log.") from error
    finally:
        log.close()
    return VolumeServer(layout, record, launched.vmm)


def prepare(layout: Layout, record: VolumeRecord) -> None:
    """Give the volume's folder to its server; nobody else may enter it."""
    folder = layout.volumes_dir / record.volume
    os.chown(folder, layout.uid_base + record.uid_number, layout.uid_base + record.uid_number)
    folder.chmod(0o700)
