"""A context: one kernel and the runs that wait for it, one at a time and in turn.

A run goes on in a task of its own, whoever listens; when its client leaves, its cell is interrupted, again and again
with longer pauses, until it ends: code may catch one KeyboardInterrupt, and the next run waits for the kernel.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping

from interpreter import lines
from interpreter.kernel import Kernel, KernelDied, KernelFailed
from interpreter.lines import Line

log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.5
_LONG_PAUSE_S = 10.0


class Run:
    """One cell on its way: what it has told so far, and whether anybody still listens."""

    def __init__(self, code: str, env: Mapping[str, str]) -> None:
        self.code, self.env = code, env
        self.left = asyncio.Event()
        self._told: asyncio.Queue[Line | None] = asyncio.Queue()

    def tell(self, line: Line) -> None:
        """Tell the client, if there still is one."""
        if not self.left.is_set():
            self._told.put_nowait(line)

    def end(self) -> None:
        """Say that nothing more will be told."""
        self._told.put_nowait(None)

    async def lines(self) -> AsyncGenerator[Line]:
        """Yield what is told, to the end."""
        while (line := await self._told.get()) is not None:
            yield line


class Context:
    """A kernel by name. `make` gives a fresh kernel; it is started with the first run, and anew after it died."""

    def __init__(self, identity: str, language: str, cwd: str, make: Callable[[], Kernel]) -> None:
        self.id, self.language, self.cwd = identity, language, cwd
        self._make = make
        self._kernel: Kernel | None = None
        self._turn = asyncio.Lock()
        self._runs: set[Run] = set()

    async def run(self, run: Run) -> None:
        """Bring a run to its end, in turn; raises nothing that the code could cause."""
        self._runs.add(run)
        try:
            async with self._turn:
                if not run.left.is_set():
                    await self._execute(run)
        except KernelFailed as error:
            run.tell(lines.error("KernelFailed", str(error)))
        finally:
            self._runs.discard(run)
            run.end()

    async def start(self) -> None:
        """Start the kernel where none lives. Raises KernelFailed."""
        async with self._turn:
            await self._living()

    async def restart(self) -> None:
        """Begin anew: the running cell ends with the kernel, its variables go. Raises KernelFailed."""
        await self._end_kernel()
        await self.start()

    async def stop(self) -> None:
        """End it all; runs that wait end with nothing done."""
        for run in self._runs:
            run.left.set()
        await self._end_kernel()

    def renew(self) -> None:
        """Let the kernel look whether it is a copy."""
        if self._kernel is not None:
            self._kernel.renew()

    async def _execute(self, run: Run) -> None:
        died = self._kernel is not None and not self._kernel.alive
        kernel = await self._living()
        if died:
            died = False
            run.tell(lines.output("stderr", "The kernel had died and was started again, without its variables.\n"))
        try:
            async with asyncio.TaskGroup() as group:
                interrupter = group.create_task(_interrupt_when_left(run, kernel))
                try:
                    await _pass_on(kernel, run)
                finally:
                    interrupter.cancel()
        except* KernelDied as found:
            how = found.exceptions[0]
            log.warning("kernel of context %s died: %s", self.id, how)
            run.tell(lines.error("KernelDied", f"{how}. The variables of this context are gone."))
            died = True
        if died and self._kernel is kernel:
            await self._living()  # so that the next run finds one that is up

    async def _living(self) -> Kernel:
        if self._kernel is None or not self._kernel.alive:
            await self._end_kernel()
            kernel = self._make()
            await kernel.start()
            self._kernel = kernel
        return self._kernel

    async def _end_kernel(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            await kernel.stop()


async def _pass_on(kernel: Kernel, run: Run) -> None:
    async with contextlib.aclosing(kernel.execute(run.code, run.env)) as told:
        async for line in told:
            run.tell(line)


async def _interrupt_when_left(run: Run, kernel: Kernel) -> None:
    await run.left.wait()
    pause_s = _FIRST_PAUSE_S
    while True:
        kernel.interrupt()
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONG_PAUSE_S)
