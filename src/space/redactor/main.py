"""The redactor process: `python -m space.redactor --settings FILE`. Unprivileged; unix sockets only."""

import argparse
import asyncio
import contextlib
import os
import signal
from pathlib import Path

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc

from space import telemetry
from space.host.process import keep_memory_private
from space.redactor.service import Redactor
from space.settings import RedactorSettings, read_process_settings
from space.wire.redactor import NeedlesClient

_PAIR_ONLY = 0o117
_GRACE_S = 1.0


async def _serve(settings: RedactorSettings) -> None:
    layout = settings.layout()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        client = NeedlesClient(layout.needles_sock)
        stack.push_async_callback(client.close)
        server = grpc.aio.server(options=[("grpc.max_concurrent_streams", 65536)])
        external_processor_pb2_grpc.add_ExternalProcessorServicer_to_server(Redactor(client.secrets), server)
        server.add_insecure_port(f"unix:{layout.redactor_sock}")
        await server.start()
        stack.push_async_callback(server.stop, _GRACE_S)
        telemetry.logger().info("redactor_started")
        await stop.wait()
    telemetry.logger().info("redactor_stopped")


def main() -> None:
    """Run until SIGTERM."""
    keep_memory_private()
    os.umask(_PAIR_ONLY)
    parser = argparse.ArgumentParser(prog="space.redactor")
    parser.add_argument("--settings", type=Path, required=True)
    settings = read_process_settings(RedactorSettings, parser.parse_args().settings)
    telemetry.configure("redactor", settings.log_level)
    asyncio.run(_serve(settings))
