"""The api process: both HTTP surfaces, the edge's decisions, and the controller's loops."""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from space import telemetry
from space.apiserver.assembly import assemble
from space.control import keys
from space.control.access import Access
from space.control.plane import Plane
from space.control.vault import Vault, read_keys
from space.control.workers import WorkerLink, Workers
from space.controllers import loops
from space.host.tasks import first
from space.model.errors import SpaceError
from space.model.image_names import read_image_map
from space.settings import ApiSettings, read_process_settings
from space.store.db import connected
from space.store.migrate import MigrationRefused, migrate
from space.store.notices import Notices
from space.wire.serving import bind_unix, server
from space.wire.worker_client import WorkerClient

_GRACE_S = 10
_DATABASE_S = 30


def main(settings_file: Path, *, ensure_key: bool) -> None:
    """Serve until SIGTERM; or, with `ensure_key`, print the first API key and leave."""
    settings = read_process_settings(ApiSettings, settings_file)
    telemetry.configure("api", settings.log_level)
    try:
        asyncio.run(_ensure_key(settings) if ensure_key else _serve(settings))
    except (SpaceError, MigrationRefused) as error:
        sys.exit(f"space.apiserver: {error}")


async def _ensure_key(settings: ApiSettings) -> None:
    """Read the key that the host has from standard input; print one that works if that one does not.

    Nothing is printed where it does. A key is never an argument: other users could see it.
    """
    present = sys.stdin.read().strip()
    async with connected(settings.database_url) as db:
        await db.wait_ready(_DATABASE_S)
        await migrate(db)
        key = await keys.ensure_first_key(db, present)
    if key != present:
        sys.stdout.write(key + "\n")


async def _serve(settings: ApiSettings) -> None:
    layout = settings.layout()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        db = await stack.enter_async_context(connected(settings.database_url))
        await db.wait_ready(_DATABASE_S)
        await migrate(db)
        client = WorkerClient(layout.worker_sock)
        stack.push_async_callback(client.close)
        vault = Vault([key for one in settings.secret_keys for key in read_keys(one.get_secret_value())])
        plane = Plane(db, Notices(db), Workers([WorkerLink(client)]), vault, read_image_map(settings.images))
        await plane.clock.compare(db)
        access = Access(plane)
        stack.enter_context(access.following())
        socket = stack.enter_context(contextlib.closing(bind_unix(layout.api_sock, mode=0o660)))
        http = server(assemble(plane, access, settings.domain), grace_s=_GRACE_S)

        async def stopping() -> None:
            await stop.wait()
            http.should_exit = True

        async def serving() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(stopping())
                await http.serve(sockets=[socket])
                stop.set()

        await first(serving(), loops.run(plane), access.keep_keys())
    telemetry.logger().info("api_stopped")
