"""A whole SPACE on this machine for tests: `space up` on a free port and a data folder of the tests' own.

The folder stays between runs, so that the base template is built once; everything else of it is ended by `down()`.
"""

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import sys
import time
import types
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2

SPACE = Path(sys.prefix) / "bin" / "space"
DATA = Path(os.environ.pop("SPACE_TEST_DATA", "/var/lib/space-test/e2e"))  # noqa: TID251 - a setting of the tests alone
"""`SPACE_TEST_DATA` lets two checkouts run at the same time on one machine. SPACE, which refuses settings it does
not know, never sees it."""

Json = dict[str, Any]
_SETTINGS = {"SPACE_DISK_GIB": "6", "SPACE_MEMORY_GIB": "4", "SPACE_SLOT_POOL": "2", "SPACE_UPLINK": "none"}
"""Small areas: 6 and 5 GiB of disk. Memory is for seven sandboxes and spares of the usual size. Nothing leaves."""

_INHERITED = ("PATH", "PYTHONPATH")


def free_port() -> int:
    """Return a TCP port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def eventually(fact: Callable[[], Any], *, within_s: float, what: str) -> Any:
    """Wait until `fact()` (plain or awaitable) is true and return it; fails when it is not in time."""
    deadline = time.monotonic() + within_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = fact()
            if asyncio.iscoroutine(last):
                last = await last
        except (httpx2.TransportError, OSError) as error:
            last = error
        else:
            if last:
                return last
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {within_s} s: {what} (last: {last!r})")


def _inherited() -> dict[str, str]:
    """Return what a child gets of our environment: nothing that is a setting."""
    found = {name: os.environ[name] for name in _INHERITED if name in os.environ}  # noqa: TID251 - a child's environment
    return {"HOME": "/root", **found}


class Deployment:
    """One running SPACE, and a client with its key."""

    def __init__(
        self, data: Path = DATA, port: int | None = None, settings: Mapping[str, str] = types.MappingProxyType({})
    ) -> None:
        """Use what is kept in `data`; `settings` go above those of the tests."""
        self.data, self.port = data, port or free_port()
        self.settings = {**_inherited(), **_SETTINGS, **settings}
        self.url = f"http://127.0.0.1:{self.port}"
        self._up: asyncio.subprocess.Process | None = None
        self.http = httpx2.AsyncClient(base_url=self.url, timeout=120, trust_env=False)

    @property
    def log_file(self) -> Path:
        """What the last `up()` said on standard error."""
        return self.data.parent / f"{self.data.name}-up.log"

    @property
    def key(self) -> str:
        """The API key that `space up` left for the CLI."""
        return (self.data / "api-key").read_text().strip()

    @property
    def run_dir(self) -> Path:
        """The instance's run folder."""
        return Path("/run/space", json.loads((self.data / "instance.json").read_text())["instance"])

    @property
    def environment(self) -> dict[str, str]:
        """What the command line needs to talk to this deployment."""
        return {**_inherited(), "SPACE_URL": self.url, "SPACE_API_KEY": self.key}

    async def up(self) -> str:
        """Start it and return its one line, once it is ready; what it says else is in a log, new each time."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        log = self.log_file.open("wb")
        self._up = await asyncio.create_subprocess_exec(
            SPACE, "up", "--port", str(self.port), "--data", str(self.data),
            env=self.settings,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
        log.close()
        assert self._up.stdout is not None
        async with asyncio.timeout(300):
            line = (await self._up.stdout.readline()).decode()
        if "ready" not in line:
            await self._up.wait()
            raise AssertionError(f"space up ended with {self._up.returncode}: {line}\n{self.log_file.read_text()}")
        self.http.headers["x-api-key"] = self.key
        return line

    def kill_up(self) -> None:
        """Kill the supervisor alone, with SIGKILL."""
        assert self._up is not None
        self._up.kill()

    async def stop(self) -> int:
        """SIGTERM to `space up`; VMs live on. Returns its exit status."""
        assert self._up is not None
        with contextlib.suppress(ProcessLookupError):
            self._up.send_signal(signal.SIGTERM)
        async with asyncio.timeout(40):
            return await self._up.wait()

    async def down(self) -> None:
        """End it with everything it holds, and keep on disk what makes the next start quick: templates and cache."""
        done = await asyncio.create_subprocess_exec(SPACE, "down", "--data", str(self.data), env=_inherited())
        async with asyncio.timeout(60):
            assert await done.wait() == 0
        if self._up is not None:
            async with asyncio.timeout(20):
                await self._up.wait()
        await self.http.aclose()
        (self.data / "mem.img").unlink(missing_ok=True)

    def daemon_pid(self, name: str) -> int:
        """Return the pid of a server process: worker, gateway, ingress, api, edge, postgres."""
        return int(json.loads((self.run_dir / "daemons" / f"{name}.json").read_text())["pid"])

    def daemon_ready(self, name: str, other_than: int) -> bool:
        """Tell whether a new process of this name is ready."""
        record = json.loads((self.run_dir / "daemons" / f"{name}.json").read_text())
        return bool(record["pid"] != other_than and record["state"] == "ready")

    async def cli(self, *arguments: str, stdin: bytes = b"", timeout_s: float = 180) -> tuple[int, str, str]:
        """Run `space ...` as a user would; returns exit status, standard output, standard error."""
        process = await asyncio.create_subprocess_exec(
            SPACE, *arguments, env=self.environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate(stdin)
        return process.returncode or 0, out.decode(), err.decode()

    async def create(self, **body: object) -> str:
        """Create a sandbox of the base template and return its id."""
        answer = await self.http.post("/v1/sandboxes", json={"template": "base", **body})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def delete(self, sandbox: str) -> None:
        """Delete a sandbox."""
        answer = await self.http.delete(f"/v1/sandboxes/{sandbox}")
        assert answer.status_code in (200, 204), answer.text

    async def state(self, sandbox: str) -> Json:
        """Return what the API says of a sandbox."""
        found: Json = (await self.http.get(f"/v1/sandboxes/{sandbox}")).json()
        return found

    async def run(self, sandbox: str, command: str, **options: object) -> tuple[int | None, str]:
        """Run a shell command to its end; returns exit code and merged output."""
        output = bytearray()
        code: int | None = None
        async for line in self.lines(sandbox, cmd=command, **options):
            if line["type"] in ("stdout", "stderr", "pty"):
                output += _decode(line)
            elif line["type"] == "exit":
                code = line["code"]
        return code, output.decode(errors="replace")

    async def output(self, sandbox: str, command: str) -> str:
        """Run a shell command that must succeed, and return what it said."""
        code, output = await self.run(sandbox, command)
        assert code == 0, output
        return output.strip()

    async def background(self, sandbox: str, command: str) -> str:
        """Start a shell command that goes on, and return its id."""
        answer = await self.http.post(f"/v1/sandboxes/{sandbox}/commands", json={"cmd": command, "detach": True})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["command_id"])

    async def order(self, sandbox: str, verb: str, **body: object) -> Json:
        """Have something done to a sandbox, and return the answer, which must be that it was."""
        answer = await self.http.post(f"/v1/sandboxes/{sandbox}/{verb}", json=body)
        assert answer.status_code in (200, 201), answer.text
        found: Json = answer.json()
        return found

    async def lines(self, sandbox: str, **body: object) -> AsyncIterator[Json]:
        """Start a command and yield the lines of its stream as they come."""
        async with self.stream("POST", f"/v1/sandboxes/{sandbox}/commands", json=body) as found:
            async for line in found:
                yield line

    @contextlib.asynccontextmanager
    async def stream(self, method: str, path: str, **options: Any) -> AsyncGenerator[AsyncIterator[Json]]:
        """Open an NDJSON stream."""
        async with self.http.stream(method, path, **options) as response:
            if not response.is_success:
                raise AssertionError(f"{response.status_code}: {(await response.aread()).decode()}")

            async def objects() -> AsyncIterator[Json]:
                async for text in response.aiter_lines():
                    yield json.loads(text)

            yield objects()


def _decode(line: Json) -> bytes:
    return base64.b64decode(line["data"])


def vms(data: Path) -> dict[str, Json]:
    """Return what the ledger has of each sandbox's VM: `vm`, `pid`, `slot`; those without one are left out."""
    entries = [json.loads(path.read_text()) for path in (data / "worker" / "ledger").glob("*.json")]
    return {entry["sandbox"]: entry["vm"] for entry in entries if entry["vm"] is not None}


def vmm_pids(data: Path) -> list[int]:
    """Return the pids of the VMMs of a deployment's sandboxes."""
    return [vm["pid"] for vm in vms(data).values() if vm["pid"] is not None]
