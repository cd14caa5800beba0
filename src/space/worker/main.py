"""The worker process: prepares the host, adopts what a former worker left, serves.

Runs as root: it makes namespaces, mounts, device nodes and processes of other uids. It accepts connections from the
api's group on one unix socket and never dials the control plane.
"""

import argparse
import asyncio
import contextlib
import secrets
import signal
from pathlib import Path

import httpx2

from space import telemetry
from space.disk import area
from space.host.process import keep_memory_private
from space.image.build import boot_files
from space.model.ids import SandboxId
from space.net import addresses, gateway_ns
from space.net.pool import SlotPool
from space.settings import WorkerSettings, read_process_settings
from space.vmm import probe
from space.wire.gateway import GatewayClient
from space.wire.serving import bind_unix, server
from space.worker import teardown
from space.worker.fleet import Fleet
from space.worker.gateway_link import GatewayLink
from space.worker.host import Host
from space.worker.janitor import sweep
from space.worker.ledger import Ledger
from space.worker.server import create_app

log = telemetry.logger()
_BOOT_DEADLINE_S = {"tcg": 45.0, "kvm": 15.0}
"""Many times the usual boot (2 s emulated, 0.3 s with KVM), so that a busy host is not taken for a dead guest."""


async def serve(settings: WorkerSettings) -> None:
    """Run until SIGTERM or SIGINT; VMs live on."""
    layout = settings.layout()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    memory_gib = -(-settings.memory_mib // 1024)
    await area.prepare(layout, disk_gib=settings.disk_gib, memory_gib=memory_gib)
    await gateway_ns.ensure(layout)
    kernel, initrd = await boot_files(layout, settings.code_dir)
    driver = await probe.choose(layout, settings.driver, kernel, initrd)
    ledger = Ledger(layout.ledger_dir)
    ledger.open()
    held = {SandboxId(e.sandbox): addresses.pair(e.slot).slot for e in ledger.read() if e.slot and e.state != "failed"}
    async with contextlib.AsyncExitStack() as stack:
        gateway = GatewayClient(layout.gateway_control_sock)
        stack.push_async_callback(gateway.close)
        transport = httpx2.AsyncHTTPTransport(uds=str(layout.ingress_sock))
        ingress = await stack.enter_async_context(
            httpx2.AsyncClient(transport=transport, base_url="http://agent", timeout=2)
        )
        pool = SlotPool(layout, settings.slot_pool)
        link = GatewayLink(gateway, held)
        host = Host(layout, driver, pool, link, ledger, ingress, _BOOT_DEADLINE_S[driver.accelerator])
        boot = secrets.token_hex(8)
        async with asyncio.TaskGroup() as group:
            fleet = Fleet(host, group, settings.memory_mib, boot)
            await fleet.adopt()
            await sweep(layout, slot_numbers=fleet.slot_numbers(), uids=fleet.uids(), sandboxes=fleet.sandboxes())
            loops = [group.create_task(link.run()), group.create_task(pool.run())]
            app = create_app(host, fleet, settings, f"w{layout.instance}", boot)
            web = server(app, grace_s=5)
            listening = stack.enter_context(bind_unix(layout.worker_sock, mode=0o660))
            serving = group.create_task(web.serve(sockets=[listening]))
            log.info(
                "worker_started", driver=driver.name, accelerator=driver.accelerator, adopted=len(fleet.sandboxes())
            )
            await stop.wait()
            web.should_exit = True
            fleet.drain()
            await serving
            for loop in loops:
                loop.cancel()
            fleet.let_go()
    log.info("worker_stopped")


def main() -> None:
    """Entry point: `python -m space.worker --settings FILE [--down]`."""
    parser = argparse.ArgumentParser(prog="space.worker", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--down", action="store_true", help="end every VM and give back all that the worker made")
    arguments = parser.parse_args()
    settings = read_process_settings(WorkerSettings, arguments.settings)
    telemetry.configure("worker", settings.log_level)
    keep_memory_private()
    asyncio.run(teardown.down(settings.layout()) if arguments.down else serve(settings))
