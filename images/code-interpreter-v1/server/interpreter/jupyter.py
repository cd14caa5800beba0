"""A kernel that speaks Jupyter's protocol, over unix sockets: no port that anything else in the sandbox could reach.

One task reads what the kernel publishes; the end of its process is seen through a descriptor of it (pidfd_open(2)), so
that a death in the middle of a run ends the run at once.
"""

import asyncio
import contextlib
import logging
import os
import select
import signal
import uuid
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager

from interpreter import bash, environment, lines
from interpreter.kernel import KernelDied, KernelFailed
from interpreter.lines import Line

log = logging.getLogger(__name__)
_SPECS = {"python": "python3"}
"""Names of kernel specifications that are not their language's: Jupyter itself resolves `python` to its own."""

_START_S = 600.0
"""A kernel takes half a second to come up, half a minute where the CPU is emulated, and many times that where others
share it; one that is given up has to begin anew."""


class JupyterKernel:
    """A kernel of the language `name`, by its specification in the folder `specs`, that begins in the folder `cwd`.

    `warm_up` is Python that it runs before it counts as started, in a namespace of its own.
    """

    def __init__(
        self, name: str, cwd: str, *, specs: Path, runtime: Path, own_env: Mapping[str, str], warm_up: str = ""
    ) -> None:
        self._name, self._cwd, self._own_env, self._warm_up = name, cwd, own_env, warm_up
        self._manager = AsyncKernelManager(
            kernel_name=_SPECS.get(name, name),
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(specs)]),
            transport="ipc",
            connection_file=str(runtime / f"{uuid.uuid4().hex}.json"),
        )
        self._client: AsyncKernelClient | None = None
        self._published: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None
        self._pidfd = -1
        self._alive = self._stopped = False

    @property
    def alive(self) -> bool:
        """Whether its process lives; looked up, for its end may not have been noticed yet."""
        return self._alive and not select.select([self._pidfd], [], [], 0)[0]

    async def start(self) -> None:
        """Start the process and wait until it takes code. Raises KernelFailed."""
        try:
            async with asyncio.timeout(_START_S):
                await self._manager.start_kernel(cwd=self._cwd, env=environment.for_kernel(self._own_env))
                self._watch()
                self._client = self._manager.client()
                self._client.start_channels(stdin=False, hb=False)
                await self._client.wait_for_ready(timeout=_START_S)
        except (OSError, RuntimeError, TimeoutError) as error:
            await self.stop()
            raise KernelFailed(f"The kernel {self._name!r} did not start: {error}") from error
        # it ends with the kernel, in `stop`, which the context calls on every way out
        self._reader = asyncio.create_task(self._read(self._client))
        if self._warm_up:
            code = f"exec(compile({self._warm_up!r}, 'warm-up', 'exec'), {{'__name__': 'warm-up'}})"
            await self._quietly(code)

    async def execute(self, code: str, env: Mapping[str, str]) -> AsyncGenerator[Line]:
        """Run a cell and yield what it tells. Raises KernelDied."""
        around = env if self._name == "bash" else {}
        if around:
            await self._quietly(bash.entering(around))
        async for line in self._execute(code, env, silent=False):
            yield line
        if around:
            await self._quietly(bash.leaving(around))

    async def _quietly(self, code: str) -> None:
        """Run code of our own that nobody sees."""
        async for line in self._execute(code, {}, silent=True):
            log.warning("%s: %s", self._name, line)

    async def _execute(self, code: str, env: Mapping[str, str], *, silent: bool) -> AsyncGenerator[Line]:
        """Run a cell; a silent one is not counted and shows nothing."""
        client = self._client
        assert client is not None
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        request = client.session.msg("execute_request", content, metadata={"interpreter_env": dict(env)})
        client.shell_channel.send(request)
        identity = request["header"]["msg_id"]
        while True:
            message = await self._published.get()
            if message is None:
                raise KernelDied(self._how_it_ended())
            if message["parent_header"].get("msg_id") != identity:
                continue  # something that an earlier cell left running
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
            if (line := lines.of_message(message["msg_type"], message["content"])) is not None:
                yield line
        await self._take_reply(client, identity)

    def interrupt(self) -> None:
        """Interrupt the kernel's main thread, and what it waits for: the signal goes to its process group."""
        self._signal(signal.SIGINT, group=True)

    def renew(self) -> None:
        """Let a Python kernel look whether it is a copy; others have no ear for it."""
        if self._name == "python":
            self._signal(signal.SIGUSR1, group=False)

    async def stop(self) -> None:
        """End the process and give its sockets back; fine twice."""
        self._alive, self._stopped = False, True
        self._published.put_nowait(None)
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None
        if self._client is not None:
            self._client.stop_channels()
            self._client = None
        if self._manager.has_kernel:
            await self._manager.shutdown_kernel(now=True)
        self._unwatch()
        self._manager.cleanup_connection_file()
        self._manager.cleanup_ipc_files()

    async def _take_reply(self, client: AsyncKernelClient, identity: str) -> None:
        """Take the reply, which says nothing more than what was published, off its socket."""
        while self._alive:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    reply = await client.shell_channel.get_msg()
                    if reply["parent_header"].get("msg_id") == identity:
                        return

    async def _read(self, client: AsyncKernelClient) -> None:
        while True:
            self._published.put_nowait(await client.iopub_channel.get_msg())

    # -- the process ---------------------------------------------------------------------------------------------------

    @property
    def _pid(self) -> int:
        return int(self._manager.provisioner.pid)

    def _watch(self) -> None:
        self._pidfd = os.pidfd_open(self._pid)
        self._alive = True
        asyncio.get_running_loop().add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        self._alive = False
        self._unwatch()
        self._published.put_nowait(None)

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _signal(self, number: int, *, group: bool) -> None:
        if not self._alive:
            return
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self._pid, number)
            else:
                os.kill(self._pid, number)

    def _how_it_ended(self) -> str:
        if self._stopped:
            return "The kernel was ended: its context was restarted or removed"
        status = self._manager.provisioner.process.poll()
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            hint = "; it may have needed more memory than there is" if name == "SIGKILL" else ""
            return f"The kernel was ended by {name}{hint}"
        return f"The kernel ended with status {status}"
