"""Serve the code interpreter: `python -m interpreter --kernels FOLDER --node FILE [--listen ADDRESS:PORT]`.

It starts the default Python kernel at once; `/health` answers once that takes code, so that a template that waits for
it holds a warm kernel. SIGTERM ends it and its kernels.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from interpreter import web
from interpreter.contexts import HOME, Contexts
from interpreter.jupyter import JupyterKernel
from interpreter.kernel import Kernel
from interpreter.node import NodeKernel

log = logging.getLogger("interpreter")


def main() -> None:
    """Read the arguments and serve until told to end."""
    parser = argparse.ArgumentParser(prog="interpreter")
    parser.add_argument("--listen", default="0.0.0.0:49999", help="address and port")
    parser.add_argument("--kernels", type=Path, required=True, help="folder of Jupyter's kernel specifications")
    parser.add_argument("--node", type=Path, required=True, help="the JavaScript kernel's program")
    parser.add_argument("--home", default=HOME, help="folder in which kernels begin")
    parser.add_argument("--copied", type=Path, help="a pipe that is written to when this machine may be a copy")
    parser.add_argument("--warm-up", type=Path, help="code that the first kernel runs before it counts as warm")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    with tempfile.TemporaryDirectory(prefix="interpreter-") as runtime:
        asyncio.run(_serve(arguments, Path(runtime), os.environ))


async def _serve(arguments: argparse.Namespace, runtime: Path, own_env: Mapping[str, str]) -> None:
    warm_up = arguments.warm_up.read_text() if arguments.warm_up else ""

    def make(language: str, cwd: str) -> Kernel:
        nonlocal warm_up
        if language in {"javascript", "typescript"}:
            return NodeKernel(arguments.node, cwd, types=language == "typescript", own_env=own_env)
        first, warm_up = warm_up, ""
        return JupyterKernel(language, cwd, specs=arguments.kernels, runtime=runtime, own_env=own_env, warm_up=first)

    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    contexts = Contexts(make, arguments.home)
    address, _, port = arguments.listen.rpartition(":")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(contexts.stop)
        await contexts.default("python").start()
        if arguments.copied is not None:
            stack.enter_context(_told_of_copies(arguments.copied, contexts))
        async with asyncio.TaskGroup() as tasks:
            server = HTTPServer(web.application(contexts, tasks), max_buffer_size=web.MAX_BODY_BYTES)
            server.add_sockets(bind_sockets(int(port), address))
            log.info("serving on %s", arguments.listen)
            await ended.wait()
            server.stop()
            await contexts.stop()
            await server.close_all_connections()


@contextlib.contextmanager
def _told_of_copies(pipe: Path, contexts: Contexts) -> Generator[None]:
    """Let kernels look whether they are copies whenever something is written to `pipe`."""
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # also for writing, so that it never ends

    def told() -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(descriptor, 4096)
        contexts.renew()

    asyncio.get_running_loop().add_reader(descriptor, told)
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)


if __name__ == "__main__":
    main()
