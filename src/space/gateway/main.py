"""The gateway process: `python -m space.gateway --settings FILE`. Unprivileged; unix sockets only."""

import argparse
import asyncio
import contextlib
import os
import signal
from pathlib import Path

from space import telemetry
from space.gateway import authz, control
from space.gateway.slots import SlotMap
from space.host.process import keep_memory_private
from space.settings import GatewaySettings, read_process_settings

_PAIR_ONLY = 0o117
"""Sockets become 0660; their folders are setgid, so the group is that of the one process meant to connect."""


async def _serve(settings: GatewaySettings) -> None:
    layout = settings.layout()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    slots = SlotMap()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(authz.serving(layout.authz_sock, slots))
        async with asyncio.TaskGroup() as group:
            group.create_task(control.serve(layout.gateway_control_sock, slots, stop))
            telemetry.logger().info("gateway_started")
    telemetry.logger().info("gateway_stopped")


def main() -> None:
    """Run until SIGTERM."""
    keep_memory_private()
    os.umask(_PAIR_ONLY)
    parser = argparse.ArgumentParser(prog="space.gateway")
    parser.add_argument("--settings", type=Path, required=True)
    settings = read_process_settings(GatewaySettings, parser.parse_args().settings)
    telemetry.configure("gateway", settings.log_level)
    asyncio.run(_serve(settings))
