"""The worker process: prepares the host, adopts what a former worker left, serves.

Runs as root: it makes namespaces, mounts, device nodes and processes of other uids. It accepts connections from the
api's group on one unix socket and never dials the control plane.
"""

import argparse
import asyncio
import contextlib
import secrets
import signal
import sys
from pathlib import Path

import httpx2

from space import telemetry
from space.disk import area
from space.host import netns
from space.host.counter import Counter
from space.host.process import keep_memory_private
from space.host.tasks import first, first_of
from space.image.build import boot_files
from space.layout import UID_RANGE_SIZE, Layout
from space.model.errors import SpaceError
from space.model.ids import SandboxId
from space.net import addresses, gateway_ns
from space.net.openings import Openings
from space.net.pool import SlotPool
from space.settings import WorkerSettings, read_process_settings
from space.vmm import probe
from space.vmm.driver import Driver
from space.wire.gateway import GatewayClient
from space.wire.serving import bind_unix, server
from space.worker import teardown
from space.worker.assembly import assemble
from space.worker.gateway_link import GatewayLink
from space.worker.host import Host
from space.worker.ledger import Ledger
from space.worker.records import Entry
from space.worker.server import create_app
from space.worker.trust import TrustedRoot
from space.worker.volumes import Volumes

log = telemetry.logger()
_BOOT_DEADLINE_S = {"tcg": 45.0, "kvm": 15.0}
"""Many times the usual boot (2 s emulated, 0.3 s with KVM), of the time that the VM can run (host/patience.py)."""
_SETTLE_S = 10.0
"""How long a worker that is to stop waits for suspensions to be durable: the host may be about to go down."""


async def serve(settings: WorkerSettings) -> None:
    """Run until SIGTERM or SIGINT; VMs live on."""
    layout = settings.layout()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def stopped() -> None:
        await stop.wait()

    # the first start fetches and compiles for minutes, and may be given up
    driver = await first(_prepare(settings, layout), stopped())
    if driver is None:
        log.info("worker_stopped")
        return
    async with contextlib.AsyncExitStack() as stack:
        host = await _host(stack, settings, layout, driver)
        boot = secrets.token_hex(8)
        async with asyncio.TaskGroup() as group:
            worker = await assemble(host, settings, group, boot)
            loops = [group.create_task(loop) for loop in worker.loops()]
            web = server(create_app(worker, settings, f"w{layout.instance}", boot), grace_s=5)
            listening = stack.enter_context(bind_unix(layout.worker_sock, mode=0o660))
            serving = group.create_task(web.serve(sockets=[listening]))
            log.info("worker_started", vmm=host.vmm, adopted=len(worker.fleet.told()))
            await stop.wait()
            web.should_exit = True
            worker.drain()
            await serving
            await worker.stock.settler.finish(_SETTLE_S)
            for loop in loops:
                loop.cancel()
            worker.let_go()
    log.info("worker_stopped")


async def _prepare(settings: WorkerSettings, layout: Layout) -> Driver:
    """Make the areas and the gateway namespace, and find out what runs guests here."""
    await area.prepare(layout, disk_gib=settings.disk_gib, memory_gib=-(-settings.memory_mib // 1024))
    await gateway_ns.ensure(layout, settings.uplink, settings.resolvers, settings.never_except)
    kernel, initrd = await boot_files(layout, settings.code_dir)
    return await probe.choose(layout, settings.driver, kernel, initrd)


async def _host(stack: contextlib.AsyncExitStack, settings: WorkerSettings, layout: Layout, driver: Driver) -> Host:
    ledger = Ledger(layout.ledger_dir, Entry)
    ledger.open()
    # a suspension that is undone goes on with its slot; one that was committed gives it back
    here = ("running", "paused", "suspending")
    live = [(e, e.vm.on_this_boot().slot) for e in ledger.read() if e.vm and e.state in here]
    held = {SandboxId(e.sandbox): e.at(addresses.pair(slot).slot) for e, slot in live if slot is not None}
    openings = Openings(netns.path(layout.gateway_netns))
    gateway = GatewayClient(layout.gateway_control_sock)
    stack.push_async_callback(gateway.close)
    transport = httpx2.AsyncHTTPTransport(uds=str(layout.ingress_sock))
    ingress = await stack.enter_async_context(
        httpx2.AsyncClient(transport=transport, base_url="http://agent", timeout=2)
    )
    volumes = Volumes(layout, settings.code_dir)
    volumes.open()
    return Host(
        layout=layout,
        driver=driver,
        pool=SlotPool(layout, settings.slot_pool),
        link=GatewayLink(layout, gateway, openings, held),
        root=TrustedRoot(layout.data_dir / "worker" / "root.pem"),
        ledger=ledger,
        uids=Counter(layout.data_dir / "worker" / "next-uid", last=UID_RANGE_SIZE - layout.vm_uid_offset - 1),
        ingress=ingress,
        volumes=volumes,
        boot_deadline_s=_BOOT_DEADLINE_S[driver.accelerator],
    )


def main() -> None:
    """Entry point: `python -m space.worker --settings FILE [--down]`."""
    parser = argparse.ArgumentParser(prog="space.worker", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--down", action="store_true", help="end every VM and give back all that the worker made")
    arguments = parser.parse_args()
    settings = read_process_settings(WorkerSettings, arguments.settings)
    telemetry.configure("worker", settings.log_level)
    keep_memory_private()
    try:
        asyncio.run(teardown.down(settings.layout()) if arguments.down else serve(settings))
    except (SpaceError, BaseExceptionGroup) as error:
        problem = first_of(error, SpaceError)
        if problem is None:
            raise
        sys.exit(str(problem))  # one line that says what to do; `space up` shows it
