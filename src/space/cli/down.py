"""`space down`: stop the running `space up`, end every microVM, give back all that the instance holds of this host.

What stays is the data folder: templates, the database, the identity.
"""

import asyncio
import signal

from space import telemetry
from space.cli import code, daemons, folders, instance, output
from space.cli.supervisor import last_words, stop_leftovers
from space.cli.up import Data, require_root
from space.host import command
from space.host.command import CommandError
from space.host.process import ProcessRef, start_time, watch
from space.layout import Layout
from space.model.errors import Unavailable
from space.settings import HostSettings, host_settings
from space.store import embedded

_STOP_S = 40
"""More than all server processes together may take to stop."""
_GIVE_BACK_S = 120


def down(data: Data = None) -> None:
    """End SPACE on this host, microVMs too; needs root. Templates and the database stay."""
    require_root("space down")
    settings = host_settings(data_dir=data)
    telemetry.configure("down", settings.log_level)
    asyncio.run(_down(settings))


async def _down(settings: HostSettings) -> None:
    data_dir = settings.data_dir.resolve()
    layout = instance.read(data_dir)
    if layout is None:
        output.say(f"{data_dir} holds no SPACE; nothing to do")
        return
    await _stop_supervisor(layout)
    with instance.only_one(data_dir):
        instance.claim(data_dir)
        folders.make_folders(layout)
        await stop_leftovers(folders.records_dir(layout))
        await embedded.stop(layout)
        await _give_back(layout, settings)
        await code.hide(layout)
        folders.remove_run_dir(layout)
    output.say("SPACE is down")


async def _stop_supervisor(layout: Layout) -> None:
    """Ask the `space up` of this folder to end, and wait for it."""
    pid = instance.holder(layout.data_dir)
    started = None if pid is None else start_time(pid)
    running = None if pid is None or started is None else watch(ProcessRef(pid, started))
    if running is None:
        return
    running.send(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_S):
            await running.wait()
    except TimeoutError:
        running.release()
        raise Unavailable(
            f"`space up` (pid {pid}) did not stop within {_STOP_S} s; look at its output, "
            f"or end it with kill -9 {pid}, then run this again."
        ) from None


async def _give_back(layout: Layout, settings: HostSettings) -> None:
    """Let the worker's own program end the VMs: it alone knows what it made."""
    file = folders.write_settings(layout, "worker", daemons.worker_settings(layout, settings), 0)
    argv = daemons.python("space.worker", "--settings", str(file), "--down")
    try:
        await command.run(*argv, env=daemons.environment(layout), timeout_s=_GIVE_BACK_S)
    except CommandError as error:
        words = "\n".join(last_words(error.stderr.strip().splitlines()))
        raise Unavailable(f"Not everything could be given back; run this again. {words}") from error
