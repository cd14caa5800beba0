"""The folders of an instance and the settings files in them: who may enter, who may connect.

Folders above are 0711: passed through, not listed. A socket folder belongs to the process that listens in it and to
the group of those that connect, with the set-group-id bit so that the socket gets that group.
"""

import os
import shutil
from pathlib import Path

from space.host import command
from space.host.daemon import User, drop_privileges
from space.host.files import make_dir, write_atomic
from space.layout import RUN_ROOT, Layout
from space.model.errors import InvalidArgument
from space.settings import ProcessSettings, dump_process_settings

_SOCKET_FOLDER = 0o2710


def make_data_dir(data_dir: Path) -> None:
    """Make the data folder, or take one that is ours or empty; raises InvalidArgument for any other folder."""
    if data_dir.exists():
        if not data_dir.is_dir():
            raise InvalidArgument(f"{data_dir} is not a folder; choose another with --data.")
        found = {entry.name for entry in data_dir.iterdir()} - {"lost+found"}
        if found and not found & {"instance.json", "lock"}:
            raise InvalidArgument(f"{data_dir} holds other files; choose an empty or new folder with --data.")
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    make_dir(data_dir, mode=0o711)


async def check_reachable(layout: Layout) -> None:
    """Raise InvalidArgument where the unprivileged processes cannot get to the data folder."""
    prefix = drop_privileges(User(layout.api_uid, layout.api_uid))
    done = await command.run(*prefix, "test", "-x", str(layout.data_dir), check=False)
    if done.status != 0:
        raise InvalidArgument(
            f"{layout.data_dir} lies below a folder that other users may not enter, so microVMs could not open their "
            f"disks. Use a folder such as /var/lib/space, or open the parents for passing through (chmod o+x)."
        )


def make_run_dir(layout: Layout) -> None:
    """Make the run folder of the instance."""
    make_dir(RUN_ROOT, mode=0o711)
    make_dir(layout.run_dir, mode=0o711)


def make_folders(layout: Layout) -> None:
    """Make, or bring to the right owner and mode, every folder that the processes expect."""
    make_run_dir(layout)
    sockets = (
        (layout.api_sock, layout.api_uid, layout.edge_api_gid),
        (layout.authz_sock, layout.gateway_uid, layout.ingress_gateway_gid),
        (layout.egress_sock, layout.gateway_uid, layout.egress_gateway_gid),
        (layout.redactor_sock, layout.redactor_uid, layout.egress_redactor_gid),
        (layout.needles_sock, layout.gateway_uid, layout.redactor_gateway_gid),
        (layout.ingress_sock, layout.ingress_uid, layout.edge_ingress_gid),
        (layout.worker_sock, 0, layout.api_worker_gid),
    )
    for socket, uid, gid in sockets:
        make_dir(socket.parent, mode=_SOCKET_FOLDER, uid=uid, gid=gid)
    make_dir(layout.gateway_control_sock.parent, mode=0o700, uid=layout.gateway_uid, gid=layout.gateway_uid)
    make_dir(layout.run_dir / "settings", mode=0o711)
    make_dir(records_dir(layout), mode=0o711)
    make_dir(layout.log_dir, mode=0o711)
    make_dir(layout.data_dir / "worker", mode=0o700)
    make_dir(layout.ledger_dir, mode=0o700)
    make_dir(layout.cache_dir, mode=0o711)


def records_dir(layout: Layout) -> Path:
    """Return the folder with one record for each running server process."""
    return layout.run_dir / "daemons"


def write_settings(layout: Layout, process: str, settings: ProcessSettings, uid: int) -> Path:
    """Write the settings file of a process, readable by its user only; return its path."""
    return write_config(layout, f"{process}.json", dump_process_settings(settings), uid)


def write_config(layout: Layout, name: str, text: str, uid: int) -> Path:
    """Write a configuration file that only `uid` may read; return its path."""
    path = layout.run_dir / "settings" / name
    write_atomic(path, text, mode=0o400, owner=uid)
    return path


def make_log_file(path: Path, uid: int) -> None:
    """Make a log file that a process of `uid` can append to."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchown(descriptor, uid, uid)
    finally:
        os.close(descriptor)


def remove_run_dir(layout: Layout) -> None:
    """Remove the run folder; no process of the instance may run any more. Mounts below it are an error, not emptied."""
    if layout.run_dir.exists():
        shutil.rmtree(layout.run_dir)
