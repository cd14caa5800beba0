"""A place to run real VMs in tests: data areas, the base template, and a network namespace with a tap for each VM.

The data folder stays between runs, so that the template is built once.
"""

import asyncio
import base64
import contextlib
import dataclasses
import fcntl
import http.client
import itertools
import json
import os
import secrets
import shutil
import struct
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from space.disk import area
from space.guest import agent
from space.guest.line import Line
from space.host import command, files, netns
from space.image import build, catalog
from space.layout import Layout
from space.model.ids import SandboxId, TemplateDigest, new_id
from space.net.slot import TAP_MAC
from space.vmm.driver import BootSpec, Driver, Vm
from space.wire.agent import AgentInit
from space.wire.templates import BuildDone, BuildTemplate

CODE_DIR = Path(__file__).parents[2]
LAYOUT = Layout(Path("/var/lib/space-test/vmm"), "vmts", 0x7000_0000 + 700 * 65536)
MEMORY_MIB = 256
_TAP_FLAGS = 0x0002 | 0x1000 | 0x4000  # IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, linux/if_tun.h
_TUNSETIFF = 0x400454CA
_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Bench:
    """What VMs are made of here: the base template's files, on areas that can reflink."""

    layout: Layout
    template: catalog.TemplateFiles


@contextlib.asynccontextmanager
async def open_bench() -> AsyncGenerator[Bench]:
    """Mount the areas and build the base template where it is not there yet."""
    await area.prepare(LAYOUT, disk_gib=4, memory_gib=1)
    try:
        digest = ""
        wish = BuildTemplate(name="base", disk_mib=2048)
        async with contextlib.aclosing(build.build(LAYOUT, wish, code_dir=CODE_DIR, vmm="any")) as journal:
            async for item in journal:
                if isinstance(item, BuildDone):
                    digest = item.template.digest
        yield Bench(LAYOUT, catalog.find(LAYOUT, TemplateDigest(digest)))
    finally:
        await area.release(LAYOUT)
        (LAYOUT.data_dir / "mem.img").unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def guest_netns() -> AsyncGenerator[Path]:
    """Make a namespace with the host's end of a guest's link, as a slot has it, and nothing else."""
    name = f"{LAYOUT.netns_prefix}{os.getpid()}-{next(_numbers)}"
    await command.run("ip", "netns", "add", name)
    try:
        script = (
            "tuntap add dev tap0 mode tap vnet_hdr\n"
            "address add 169.254.0.22/30 dev tap0\n"
            f"link set tap0 address {TAP_MAC} up\n"
            "neighbour replace 169.254.0.21 lladdr 06:00:ac:10:00:02 dev tap0 nud permanent\n"
        )
        await command.run("ip", "-n", name, "-batch", "-", stdin=script.encode())
        yield netns.path(name)
    finally:
        await netns.delete(name)


def open_tap(place: Path) -> int:
    """Open `tap0` of a namespace for a VMM."""

    def attach() -> int:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"tap0", _TAP_FLAGS))
        return fd

    return netns.inside(place, attach)


class Machine:
    """A VM with its files and its namespace."""

    def __init__(self, place: Path, folder: Path, spec: BootSpec) -> None:
        self.place, self.folder, self.spec = place, folder, spec
        self.token = secrets.token_hex(16)
        self.vm: Vm | None = None

    @property
    def running(self) -> Vm:
        """The VM, once it was started."""
        assert self.vm is not None
        return self.vm

    async def start(self, driver: Driver, state: Path | None = None) -> Vm:
        """Boot it, or restore it from a device state."""
        tap = open_tap(self.place)
        try:
            spec = dataclasses.replace(self.spec, tap_fd=tap)
            self.vm = await (driver.boot(spec) if state is None else driver.restore(spec, state))
        finally:
            os.close(tap)
        return self.vm

    async def initialise(self, timeout_s: float = 30) -> float:
        """Wait until the agent answers and tell it who it is; returns the seconds that took."""
        began = time.monotonic()
        init = AgentInit(
            sandbox_id=self.spec.sandbox,
            hostname="vm",
            env={},
            access_token=self.token,
            time_unix_ns=0,
            entropy=base64.b64encode(secrets.token_bytes(64)).decode(),
        )
        async with asyncio.timeout(timeout_s):
            await agent.initialise(Line(self.place), init)
        return time.monotonic() - began

    async def health(self) -> int:
        """Ask the agent on its public port; returns the status. Raises OSError while nobody answers."""
        status, _ = await asyncio.to_thread(self._request, "GET", "/v1/health", None, 5)
        return status

    async def run(self, script: str, timeout_s: float = 30) -> tuple[int | None, str]:
        """Run a shell script as root in the guest; returns (exit code, standard output and error)."""
        body = {"args": ["/bin/sh", "-c", script], "user": "root"}
        status, answer = await asyncio.to_thread(self._request, "POST", "/v1/commands", body, timeout_s)
        assert status == 200, answer
        code, output = None, b""
        for line in answer.splitlines():
            message = json.loads(line)
            if "data" in message:
                output += base64.b64decode(message["data"])
            if message["type"] == "exit":
                code = message["code"]
        return code, output.decode()

    async def spawn(self, script: str) -> None:
        """Start a shell script as root in the guest and leave it running."""
        body = {"args": ["/bin/sh", "-c", script], "user": "root", "detach": True}
        status, answer = await asyncio.to_thread(self._request, "POST", "/v1/commands", body, 10)
        assert status == 201, answer

    def _request(self, method: str, path: str, body: object, timeout_s: float) -> tuple[int, bytes]:
        def ask() -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("169.254.0.21", 49983, timeout=timeout_s)
            with contextlib.closing(connection):
                payload = None if body is None else json.dumps(body)
                connection.request(method, path, payload, {"x-access-token": self.token})
                answer = connection.getresponse()
                return answer.status, answer.read()

        return netns.inside(self.place, ask)


@contextlib.asynccontextmanager
async def machine(
    bench: Bench, *, disk: Path | None = None, memory_from: Path | None = None, disk_from: Path | None = None
) -> AsyncGenerator[Machine]:
    """Make everything a VM needs; its VMM is killed and all of it removed at the end.

    `disk` is used as it is; `disk_from` is cloned, as the template's root filesystem is where neither is given.
    `memory_from` is cloned for a restore.
    """
    sandbox = SandboxId(new_id())
    number = next(_numbers)
    vm_dir, memory = bench.layout.vm_dir(sandbox), bench.layout.memory_file(sandbox)
    uid = bench.layout.vm_uid(os.getpid() * 64 + number)
    for folder in (vm_dir, memory.parent):
        files.make_dir(folder, mode=0o711)
    async with guest_netns() as place:
        try:
            if disk is None:
                disk = vm_dir / "disk"
                files.reflink(disk_from or bench.template.rootfs, disk, mode=0o600)
            if memory_from is not None:
                files.reflink(memory_from, memory, mode=0o600)
            made = Machine(
                place,
                vm_dir,
                BootSpec(
                    sandbox=sandbox,
                    vm_dir=vm_dir,
                    disk=disk,
                    memory=memory,
                    kernel=bench.template.kernel,
                    initrd=bench.template.initrd,
                    uid=uid,
                    vcpus=1,
                    memory_mib=MEMORY_MIB,
                    tap_fd=None,
                ),
            )
            try:
                yield made
            finally:
                if made.vm is not None:
                    await made.vm.kill()
        finally:
            shutil.rmtree(vm_dir)
            shutil.rmtree(memory.parent)
