"""`space up`: start every server process of this host, say when it is ready, keep them running until SIGTERM.

MicroVMs outlive it: the next `space up` on the same data folder adopts them. `space down` ends them too.
"""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from space import telemetry
from space.cli import apikey, code, daemons, detach, folders, instance, output, roots, secretkey, tls
from space.cli.client import URL_FILE
from space.cli.supervisor import Supervisor, stop_leftovers
from space.host.files import write_atomic
from space.host.process import start_time
from space.host.tasks import first
from space.layout import Layout
from space.model.errors import Conflict, InvalidArgument, SpaceError
from space.net import uplink
from space.settings import HostSettings, host_settings
from space.store import db, embedded
from space.wire.worker import WorkerInfo
from space.wire.worker_client import WorkerClient
from space.worker.ledger import Ledger
from space.worker.records import Entry, Spare

Data = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="The data folder (SPACE_DATA_DIR).")]


def up(
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one (SPACE_PORT).")] = None,
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (SPACE_HOST).")] = None,
    domain: Annotated[
        str | None, typer.Option(help="Domain whose names <port>-<id>.<domain> are sandboxes' ports (SPACE_DOMAIN).")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate for *.<domain>, PEM (SPACE_TLS_CERT).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, PEM (SPACE_TLS_KEY).")] = None,
    background: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is ready, and leave it running in the background.")
    ] = False,
    ready_fd: Annotated[int | None, typer.Option(detach.READY_OPTION, hidden=True)] = None,
) -> None:
    """Start SPACE on this host and keep it running; needs root.

    Prints one line on standard output when it is ready, and tells what goes on on standard error. SIGTERM or Ctrl-C
    stops the server processes and leaves microVMs running for the next start; `space down` ends those too.

    The first start takes its room on the disk at once: for disks and for guests' memory 60 % of what is free, or
    SPACE_DISK_GIB and, for memory, SPACE_MEMORY_GIB and an eighth and 0.5 GiB more.
    """
    require_root("space up")
    if background:
        raise typer.Exit(detach.start([word for word in sys.argv[1:] if word not in ("--detach", "-d")]))
    settings = host_settings(port=port, data_dir=data, host=host, domain=domain, tls_cert=tls_cert, tls_key=tls_key)
    telemetry.configure("up", settings.log_level)
    asyncio.run(_up(settings, ready_fd))


def require_root(what: str) -> None:
    """Raise InvalidArgument unless this process is root: VMs, namespaces, mounts and other user ids need it."""
    if os.geteuid() != 0:
        raise InvalidArgument(f"{what} needs root; run it with sudo.")


async def _up(settings: HostSettings, ready_fd: int | None) -> None:
    data_dir = settings.data_dir.resolve()
    certificate = tls.read(settings)
    _check_named(settings)
    if instance.read(data_dir) is None:
        check_port(settings.host, settings.port)  # now, before a folder is made for nothing
    if settings.database_url is not None:
        await db.check(settings.database_url, "SPACE_DATABASE_URL")
    folders.make_data_dir(data_dir)
    with instance.only_one(data_dir):
        layout = instance.claim(data_dir)
        for name in await stop_leftovers(folders.records_dir(layout)):
            output.say(f"stopped a {name} that an earlier `space up` left")
        port = check_port(settings.host, settings.port)
        folders.make_folders(layout)
        await folders.check_reachable(layout)
        await code.expose(layout, sys.argv[1:])
        try:
            if certificate is not None:
                tls.publish(layout, certificate)
            await _serve(layout, settings, port, ready_fd)
        finally:
            await code.hide(layout)


def _check_named(settings: HostSettings) -> None:
    """Raise InvalidArgument where what a setting names is not there: now, and not when a process needs it."""
    if settings.secret_key_file is not None:
        secretkey.read(settings.secret_key_file)
    if settings.upstream_ca is not None:
        roots.read_added(settings.upstream_ca)
    if settings.uplink != uplink.NONE:
        uplink.place(settings.uplink)


async def _serve(layout: Layout, settings: HostSettings, port: int, ready_fd: int | None) -> None:
    """Start everything, wait for SIGTERM or SIGINT, stop everything."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    supervisor = Supervisor(folders.records_dir(layout), output.say)

    async def stopped() -> None:
        await stop.wait()

    async with asyncio.TaskGroup() as group:
        following = group.create_task(tls.follow(layout, settings, output.say)) if settings.tls_cert else None
        try:
            await first(_start(layout, settings, port, supervisor, group), stopped())
            if ready_fd is not None and not stop.is_set():
                detach.let_go(ready_fd, layout.log_dir / "up.log")
            await stop.wait()
            output.say("stopping")
        except SpaceError:
            output.say(
                "SPACE did not start. What was made for it on this host (mounts, network namespaces) is kept for the "
                f"next `space up`; `space down --data {layout.data_dir}` gives it back."
            )
            raise
        finally:
            if following is not None:
                following.cancel()
            await supervisor.stop()
    output.say(f"stopped; {_kept(layout)}")


async def _start(
    layout: Layout, settings: HostSettings, port: int, supervisor: Supervisor, group: asyncio.TaskGroup
) -> None:
    database = settings.database_url
    if database is None:
        await embedded.prepare(layout)
        await supervisor.start(daemons.postgres(layout), group)
        database = embedded.dsn(layout)
    await supervisor.start(daemons.worker(layout, settings), group)
    await supervisor.start(daemons.gateway(layout, settings), group)
    await supervisor.start(daemons.redactor(layout, settings), group)
    await supervisor.start(daemons.ingress_proxy(layout), group)
    await supervisor.start(daemons.egress_proxy(layout, settings), group)
    api = daemons.api(layout, settings, database, secretkey.ensure(layout, settings))
    new_key = await apikey.ensure(layout, api)
    await supervisor.start(api, group)
    await supervisor.start(daemons.edge_proxy(layout, settings, port), group)
    if new_key is not None:
        output.say(f"a new API key, also kept in {layout.api_key_file}: {new_key}")
    worker = await _worker_info(layout)
    address = daemons.url(settings.host, port)
    write_atomic(layout.data_dir / URL_FILE, address + "\n", mode=0o644)
    if settings.domain is not None:
        output.say(_called(settings))
    print(f"SPACE is ready at {address} ({_engine(worker)}) key in {layout.api_key_file}", flush=True)


def check_port(host: str, port: int) -> int:
    """Return the port, a free one for 0; raises Conflict or InvalidArgument, before anything starts, if it is no use.

    The edge binds it some seconds later, without privileges.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    if 0 < port < lowest:
        raise InvalidArgument(
            f"Port {port} is for root only, and the edge runs unprivileged. Use one from {lowest} (--port 8080), "
            f"or allow it: sysctl net.ipv4.ip_unprivileged_port_start={port}"
        )
    try:
        family = socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            chosen: int = probe.getsockname()[1]
    except socket.gaierror:
        raise InvalidArgument(f"--host takes an IP address of this machine, not {host!r}.") from None
    except OSError as error:
        raise Conflict(
            f"Cannot listen on {host} port {port}: {error.strerror}. Choose another with --port "
            f"(0 takes a free one); `ss -ltnp sport = :{port}` shows who has it."
        ) from None
    return chosen


def _called(settings: HostSettings) -> str:
    """Return by which names clients reach it."""
    scheme = "https" if settings.tls_cert is not None else "http"
    return (
        f"clients reach the API at {scheme}://api.{settings.domain} and a sandbox's port at "
        f"{scheme}://<port>-<id>.{settings.domain}, where those names lead here"
    )


def _kept(layout: Layout) -> str:
    """Return what the worker leaves for the next start, in words."""
    vms = [entry.vm for entry in Ledger(layout.ledger_dir, Entry).read() if entry.vm is not None]
    vms += [spare.vm for spare in Ledger(layout.spares_dir, Spare).read()]
    vmms = [vm.on_this_boot().vmm for vm in vms]
    count = sum(1 for vmm in vmms if vmm is not None and start_time(vmm.pid) == vmm.start_time)
    if count == 0:
        return "no microVM runs"
    if count == 1:
        return "1 microVM is left running for the next start; `space down` ends it"
    return f"{count} microVMs are left running for the next start; `space down` ends them"


async def _worker_info(layout: Layout) -> WorkerInfo:
    client = WorkerClient(layout.worker_sock)
    try:
        return await client.info()
    finally:
        await client.close()


def _engine(worker: WorkerInfo) -> str:
    if worker.accelerator == "tcg":
        return f"driver {worker.driver}, tcg: software emulation, no usable KVM"
    return f"driver {worker.driver}, {worker.accelerator}"
