"""A shooting range: a whole SPACE whose uplink leads to the tests' internet, and two sandboxes, A that attacks, and B.

Guests are microVMs and attackers root in them. What a case may look at on the host (packets, rules, sockets, logs,
memory files) is here, too.
"""

import asyncio
import base64
import contextlib
import dataclasses
import json
import re
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import httpx2
from tests.support.deployment import Deployment, vms
from tests.support.internet import Internet

from space.host import command, netns
from space.layout import Layout
from space.net import slot
from space.net.slot import Slot

_HERE = Path(__file__).parent
_FILES = ("guest_client.py", "attack_client.py")
_FOLDER = "/opt/range"
_ROOT = "/usr/local/share/ca-certificates/space-gateway.crt"
"""What guests verify by. Reading the system's whole bundle takes an emulated processor half a second."""
CANARY = "CANARY-5f1d7c0e-secret-value"
Json = dict[str, Any]

POLICY: Json = {
    "allow": [
        {"host": "allowed.test", "protocols": ["https", "http"], "methods": ["GET"], "paths": ["/public/**"]},
        {
            "host": "bound.test",
            "methods": ["GET", "POST"],
            "paths": ["/api/**", "/reflect/**"],
            "headers": {"authorization": "Bearer ${secrets.KEY}"},
        },
        {"host": "*.wild.allowed.test"},
        *({"host": name} for name in ("tls13.test", "rebind.test", "git.test", "pypi.test")),
        *(
            {"host": name}
            for name in ("meta.test", "intranet.test", "zero.test", "loop.test", "slot.test", "hosts.test")
        ),
        *({"host": f"{kind}.bound.test"} for kind in ("expired", "self", "wrong", "untrusted")),
        {"host": "raw.test", "protocol": "tcp", "ports": [2222]},
        {"cidr": "203.0.113.44/32", "ports": [2222]},
    ],
    "deny": [{"host": "x.wild.allowed.test"}],
}
"""What A may do."""
POLICY_B: Json = {"allow": [{"host": "allowed.test", "methods": ["GET"], "paths": ["/public/**", "/files/**"]}]}


@dataclasses.dataclass
class Range:
    """The running range."""

    space: Deployment
    net: Internet
    a: str = ""
    b: str = ""

    @property
    def layout(self) -> Layout:
        """Where everything of the instance is."""
        facts = json.loads((self.space.data / "instance.json").read_text())
        return Layout(self.space.data, facts["instance"], facts["uid_base"])

    @property
    def gateway(self) -> Path:
        """The gateway namespace."""
        return netns.path(self.layout.gateway_netns)

    def slot(self, sandbox: str) -> Slot:
        """Return where a sandbox's VM is plugged in."""
        return slot.describe(self.layout, vms(self.space.data)[sandbox]["slot"])

    def slot_path(self, sandbox: str) -> Path:
        """Return the namespace of a sandbox's slot."""
        return netns.path(self.slot(sandbox).netns)

    # -- sandboxes -----------------------------------------------------------------------------------------------------

    async def make(self, policy: Mapping[str, object] | None) -> str:
        """Create a sandbox with the attackers' tools in it."""
        sandbox = await self.space.create(**({} if policy is None else {"policy": policy}))
        for name in _FILES:
            where = {"path": f"{_FOLDER}/{name}", "user": "root"}
            answer = await self.space.http.put(
                f"/v1/sandboxes/{sandbox}/files", params=where, content=(_HERE / name).read_bytes()
            )
            assert answer.is_success, answer.text
        return sandbox

    async def allow(self, sandbox: str, policy: Mapping[str, object]) -> None:
        """Set a sandbox's policy."""
        answer = await self.space.http.put(f"/v1/sandboxes/{sandbox}/policy", json=policy)
        assert answer.is_success, answer.text

    async def restore_b(self) -> None:
        """Give B its own policy again."""
        await self.allow(self.b, POLICY_B)

    async def keep_secret(self, name: str, value: str) -> None:
        """Give a secret its value."""
        answer = await self.space.http.post("/v1/secrets", json={"name": name, "value": value})
        assert answer.is_success, answer.text

    async def run(self, sandbox: str, lines: str, timeout_s: float = 90) -> Any:
        """Run lines of Python as root in a guest, after the attackers' tools; return what they show."""
        code, out = await self.shell(sandbox, ["python3", "-c", self.program(lines)], timeout_s)
        assert code == 0, out[-3000:]
        return json.loads(out.strip().splitlines()[-1])

    @staticmethod
    def program(lines: str) -> str:
        """Return a program for a guest."""
        return (
            f"import sys; sys.path.insert(0, {_FOLDER!r})\n"
            f"import guest_client; guest_client.CA = {_ROOT!r}\n"
            f"from guest_client import *\nfrom attack_client import *\n{lines}"
        )

    async def shell(self, sandbox: str, args: list[str], timeout_s: float = 90) -> tuple[int | None, str]:
        """Run a program as root in a guest; returns its exit status and output."""
        out, code = bytearray(), None
        async for line in self.space.lines(sandbox, args=args, user="root", timeout_s=timeout_s):
            if line["type"] in ("stdout", "stderr"):
                out += base64.b64decode(line["data"])
            elif line["type"] == "exit":
                code = line["code"]
        return code, out.decode(errors="replace")

    async def until_run(self, sandbox: str, args: list[str]) -> None:
        """Run a program in a guest as soon as it can be reached: a gateway that is back is not told of it yet."""
        until = time.monotonic() + 60
        while True:
            try:
                code, out = await self.shell(sandbox, args)
            except AssertionError:
                if time.monotonic() > until:
                    raise
            else:
                assert code == 0, out
                return

    @contextlib.asynccontextmanager
    async def running(self, sandbox: str, lines: str, timeout_s: int = 120) -> AsyncGenerator["Output"]:
        """Run lines in a guest beside the test; afterwards the program is ended."""
        body = {"args": ["python3", "-u", "-c", self.program(lines)], "user": "root", "timeout_s": timeout_s}
        commands = f"/v1/sandboxes/{sandbox}/commands"
        async with self.space.stream("POST", commands, json=body) as stream:
            began = await anext(stream)
            try:
                yield Output(stream)
            finally:  # what an attack left running would stand in the next one's way
                with contextlib.suppress(httpx2.HTTPError):  # whatever is broken is told of already
                    await self.space.http.delete(f"{commands}/{began['command_id']}")

    @contextlib.asynccontextmanager
    async def flowing(self, sandbox: str, lines: str) -> AsyncGenerator["Output"]:
        """Run lines in a guest beside the test, from when they say that something flows."""
        async with self.running(sandbox, lines) as output:
            said = await output.line()
            assert said == "flows", said + await output.rest()
            yield output

    async def control(self) -> None:
        """See that A and B can do what they may: without this, a refusal proves nothing."""
        async with asyncio.TaskGroup() as group:
            fetches = [
                group.create_task(self.fetch(sandbox, "allowed.test", "/public/control"))
                for sandbox in (self.a, self.b)
            ]
        for fetch in fetches:
            assert fetch.result().get("status") == 200, fetch.result()

    async def fetch(self, sandbox: str, name: str, path: str = "/", **more: object) -> Any:
        """Make one request from a guest; see guest_client.fetch."""
        arguments = ", ".join([repr(name), repr(path), *(f"{key}={value!r}" for key, value in more.items())])
        return await self.run(sandbox, f"show(fetch({arguments}))")

    # -- oracles -------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def nothing_leaves(self, *targets: str, names: tuple[str, ...] = ()) -> AsyncGenerator[None]:
        """Fail if, meanwhile, a packet to one of these addresses leaves, or a request for such a name arrives."""
        packets, seen = len(self.net.packets()), self.arrived(names)
        yield
        await self.settle()
        left = [packet for packet in self.net.packets()[packets:] if packet.get("target") in targets]
        assert not left, f"left by the uplink: {left[:5]}"
        assert self.arrived(names) == seen, f"requests for {names} arrived"

    def arrived(self, names: tuple[str, ...]) -> int:
        """Return how many requests for these names have come to the servers outside."""
        return sum(line["sni"] in names or line["host"].partition(":")[0] in names for line in self.net.seen("web"))

    async def decided(self, sandbox: str, *, wait: bool = True, **facts: object) -> Json | None:
        """Return the ledger's first decision about a sandbox with these facts; `wait` for it for up to 30 s."""
        until = time.monotonic() + 30
        while True:
            answer = await self.space.http.get(f"/v1/sandboxes/{sandbox}/egress", params={"limit": 10000})
            assert answer.is_success, answer.text
            lines: list[Json] = [json.loads(line) for line in answer.text.splitlines()]
            for line in lines:
                if all(line.get(name) == value for name, value in facts.items()):
                    return line
            if not wait or time.monotonic() > until:
                return None
            await asyncio.sleep(0.1)

    async def settle(self) -> None:
        """Wait until a marker that was sent after everything else is on the packets' record."""
        before = len(self.net.packets(target="203.0.113.99"))
        source = (
            f"import os, socket\nos.setuid({self.layout.egress_uid})\n"
            "s = socket.socket(); s.settimeout(3)\n"
            "try: s.connect(('203.0.113.99', 80))\nexcept OSError: pass"
        )
        await command.run("/usr/bin/python3", "-c", source, netns=self.gateway)
        async with asyncio.timeout(30):
            while len(self.net.packets(target="203.0.113.99")) == before:
                await asyncio.sleep(0.01)

    async def heard_again(self, sandbox: str) -> None:
        """Return when a sandbox that wasted connections may open new ones again; at once where it did not."""
        told = f"{self.slot(sandbox).address} timeout"
        argv = ("nft", "list", "set", "inet", "space_gw", "muted")
        async with asyncio.timeout(60):
            while told in (await command.run(*argv, netns=self.gateway)).stdout:
                await asyncio.sleep(0.1)

    async def counted(self, place: Path, rule: str) -> int:
        """Return how many packets the rules that contain `rule` have counted in a namespace."""
        done = await command.run("nft", "list", "ruleset", netns=place)
        lines = [line for line in done.stdout.splitlines() if rule in line]
        found = [int(number) for line in lines for number in re.findall(r"counter packets (\d+)", line)]
        assert found, rule
        return sum(found)

    async def sockets(self, address: str) -> int:
        """Return how many connections the gateway namespace has to a slot's address."""
        done = await command.run("ss", "--no-header", "--tcp", "dst", address, netns=self.gateway)
        return len(done.stdout.splitlines())

    def rss_mib(self, daemon: str) -> int:
        """Return the memory that a server process holds."""
        status = Path(f"/proc/{self.space.daemon_pid(daemon)}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) // 1024

    async def kill(self, *daemons: str) -> None:
        """Kill server processes at once, and wait until each has a successor that is ready."""
        old = {name: self.space.daemon_pid(name) for name in daemons}
        for pid in old.values():
            await command.run("kill", "-KILL", str(pid))
        async with asyncio.timeout(60):
            for name, pid in old.items():
                while not self.space.daemon_ready(name, pid):
                    await asyncio.sleep(0.02)

    async def start_again(self, *daemons: str) -> None:
        """Have server processes start again with what their files say now; `up` is all of SPACE but the microVMs."""
        if "up" in daemons:
            await self.space.stop()
            await self.space.up()
        elif daemons:
            await self.kill(*daemons)

    async def until_both_allowed(self) -> None:
        """Wait until A's and B's allowed requests succeed."""
        async with asyncio.TaskGroup() as group:
            for sandbox in (self.a, self.b):
                group.create_task(self.until_allowed(sandbox))

    async def until_allowed(self, sandbox: str) -> None:
        """Wait until a sandbox's allowed request succeeds again."""
        until = time.monotonic() + 60
        while True:
            try:
                answer = await self.fetch(sandbox, "allowed.test", "/public/again")
            except AssertionError as error:  # a gateway that is back but not told yet: the guest cannot be reached
                answer = {"error": str(error)}
            if answer.get("status") == 200:
                return
            assert time.monotonic() < until, answer


class Output:
    """What a program in a guest prints, line by line, while it runs."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._text = stream, ""

    async def line(self, timeout_s: float = 60) -> str:
        """Return its next line; raises EOFError when it has ended."""
        async with asyncio.timeout(timeout_s):
            while "\n" not in self._text:
                try:
                    message = await anext(self._stream)
                except StopAsyncIteration:
                    raise EOFError from None
                if message["type"] in ("stdout", "stderr"):
                    self._text += base64.b64decode(message["data"]).decode(errors="replace")
        found, _, self._text = self._text.partition("\n")
        return found

    async def rest(self) -> str:
        """Return what else it says until it ends."""
        found = ""
        with contextlib.suppress(EOFError):
            while True:
                found += "\n" + await self.line()
        return found
