"""The JavaScript and TypeScript kernel: Node.js with our program, over a socket of its own.

What the code prints comes through pipes, which Node.js writes to at once, so all that a cell printed is there to be
read when its end is told. It is never started before it is used: Node.js' generators cannot be seeded anew, so one that
a template's memory held would give all its copies the same "random" bytes.
"""

import asyncio
import codecs
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from interpreter import environment, lines
from interpreter.kernel import KernelDied, KernelFailed
from interpreter.lines import Line

_START_S = 300.0
_PIECE_BYTES = 64 * 1024
_FLAGS = ("--expose-internals", "--experimental-import-meta-resolve", "--disable-warning=ExperimentalWarning")


class NodeKernel:
    """A Node.js process that runs `program` in the folder `cwd`; `types` strips TypeScript's types from each cell."""

    def __init__(self, program: Path, cwd: str, *, types: bool, own_env: Mapping[str, str]) -> None:
        self._program, self._cwd, self._types, self._own_env = program, cwd, types, own_env
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.Task[None] | None = None
        self._printed: dict[str, tuple[int, codecs.IncrementalDecoder]] = {}
        self._told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._stopped = False

    @property
    def alive(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.returncode is None and not self._stopped

    async def start(self) -> None:
        """Start the process and wait until it takes code. Raises KernelFailed."""
        ours, its = socket.socketpair()
        outputs = {name: os.pipe() for name in ("stdout", "stderr")}
        try:
            self._process = await asyncio.create_subprocess_exec(
                "node", *_FLAGS, str(self._program), str(its.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=outputs["stdout"][1],
                stderr=outputs["stderr"][1],
                pass_fds=(its.fileno(),),
                env=environment.for_kernel(self._own_env),
                cwd=self._cwd,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            for reading, _ in outputs.values():
                os.close(reading)
            raise KernelFailed(f"Node.js did not start: {error}") from error
        finally:
            its.close()
            for _, writing in outputs.values():
                os.close(writing)
        for name, (reading, _) in outputs.items():
            os.set_blocking(reading, False)
            self._printed[name] = (reading, codecs.getincrementaldecoder("utf-8")("replace"))
            asyncio.get_running_loop().add_reader(reading, self._read_output, name)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=1024**3)
        # it ends with the process, or in `stop`
        self._reader = asyncio.create_task(self._read(reader))
        try:
            async with asyncio.timeout(_START_S):
                first = await self._message()
        except (TimeoutError, KernelDied) as error:
            await self.stop()
            raise KernelFailed(f"The JavaScript kernel did not start: {error}") from error
        assert first == {"op": "ready"}

    async def execute(self, code: str, env: Mapping[str, str]) -> AsyncGenerator[Line]:
        """Run a cell and yield what it tells. Raises KernelDied."""
        self._say({"op": "run", "code": code, "types": self._types, "env": dict(env)})
        while True:
            match await self._message():
                case {"op": "done"}:
                    return
                case {"op": "told" | "printed", "line": line}:
                    yield line
                case {"op": "shown", "forms": forms, "main": main}:
                    yield lines.result(forms, main=main)

    def interrupt(self) -> None:
        """Stop the running cell; one that waits is no longer waited for."""
        self._say({"op": "interrupt"})

    def renew(self) -> None:
        """Let it look whether it is a copy."""
        self._say({"op": "renew"})

    async def stop(self) -> None:
        """End the process and what it started; fine twice."""
        self._stopped = True
        self._told.put_nowait(None)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._reader is not None:
            await self._reader
            self._reader = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for name in list(self._printed):
            self._close_output(name)

    def _say(self, message: dict[str, Any]) -> None:
        if self._writer is not None and self.alive:
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def _message(self) -> dict[str, Any]:
        message = await self._told.get()
        if message is None:
            raise KernelDied(await self._how_it_ended())
        return message

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                message = json.loads(line)
                for name in list(self._printed):  # what was printed before this was said
                    self._read_output(name)
                self._told.put_nowait(message)
        self._told.put_nowait(None)

    def _read_output(self, name: str) -> None:
        descriptor, decoder = self._printed[name]
        while True:
            try:
                piece = os.read(descriptor, _PIECE_BYTES)
            except BlockingIOError:
                return
            if text := decoder.decode(piece, final=not piece):
                self._told.put_nowait({"op": "printed", "line": lines.output(name, text)})
            if not piece:
                self._close_output(name)
                return

    def _close_output(self, name: str) -> None:
        descriptor, _ = self._printed.pop(name)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    async def _how_it_ended(self) -> str:
        if self._stopped:
            return "The kernel was ended: its context was restarted or removed"
        assert self._process is not None
        status = await self._process.wait()
        if status < 0:
            name = signal.Signals(-status).name
            hint = "; it may have needed more memory than there is" if name == "SIGKILL" else ""
            return f"The kernel was ended by {name}{hint}"
        return f"The kernel ended with status {status}"
