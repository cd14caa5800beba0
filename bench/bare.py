"""A bare VM: the same QEMU, kernel, agent, disk and memory as a sandbox's, started directly.

No jail, no control group, no slot rules, no proxies, no database, no ledger: what remains is the VMM and the guest. It
is the floor that SPACE is compared with. Its network namespace and tap are made before, as SPACE's slots are; the
reflinks of disk and memory are part of a start, as they are part of SPACE's.
"""

import asyncio
import base64
import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shutil
import struct
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NoReturn

from bench.figures import ms_since

from space.disk.frozen import Frozen
from space.guest import agent
from space.guest.line import Line
from space.host import command, files, netns
from space.host.tasks import first
from space.image.catalog import TemplateFiles
from space.layout import Layout
from space.model.ids import SandboxId, new_id
from space.net import nft
from space.net.slot import TAP_MAC
from space.vmm import qmp
from space.vmm.driver import GUEST_MAC, BootSpec
from space.vmm.qemu import QUIET
from space.vmm.qemu_command import DISK, INITRD, KERNEL, MEMORY, Accelerator, argv
from space.vmm.qmp import Json, Qmp
from space.wire.agent import AgentInit, Reason
from space.wire.gateway import AGENT_PORT

_START_S = 60.0
_IN_JAIL = {DISK: "disk", MEMORY: "mem", KERNEL: "kernel", INITRD: "initrd"}
"""Where a jailed QEMU has its files, and their names in our folder."""
_TAP_FLAGS = 0x0002 | 0x1000 | 0x4000  # IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, linux/if_tun.h
_TUNSETIFF = 0x400454CA
_LINKS = f"""
tuntap add dev tap0 mode tap vnet_hdr
address add {nft.TAP}/30 dev tap0
link set tap0 address {TAP_MAC} up
neighbour replace {nft.GUEST} lladdr {GUEST_MAC} dev tap0 nud permanent
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Kit:
    """What bare VMs are made of: a template, and its frozen VM at one size."""

    layout: Layout
    template: TemplateFiles
    frozen: Frozen
    accelerator: Accelerator
    vcpus: int
    memory_mib: int


@dataclasses.dataclass(frozen=True, slots=True)
class BareVm:
    """A running one whose agent knows who it is. `pid` is QEMU's."""

    netns: Path
    pid: int
    token: str
    monitor: "Monitor"

    async def echo(self) -> float:
        """Run `echo hi` and return the milliseconds until its output arrived."""
        began = time.monotonic()
        raw = netns.tcp_socket(self.netns)
        await asyncio.get_running_loop().sock_connect(raw, (nft.GUEST, AGENT_PORT))
        reader, writer = await asyncio.open_connection(sock=raw)
        shown = 0.0
        try:
            body = json.dumps({"args": ["echo", "hi"]})
            writer.write(
                f"POST /v1/commands HTTP/1.1\r\nhost: agent\r\nx-access-token: {self.token}\r\nconnection: close\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
            )
            async for line in reader:
                if b'"stdout"' in line:
                    shown = ms_since(began)
        finally:
            writer.close()
        if not shown:
            raise RuntimeError("a command in a bare VM showed nothing")
        return shown


@contextlib.asynccontextmanager
async def place(layout: Layout) -> AsyncGenerator[Path]:
    """Make a namespace with a tap and nothing else; its name is none of a slot's, so the worker leaves it alone."""
    name = f"bench-{layout.instance}-{secrets.token_hex(2)}"
    await command.run("ip", "netns", "add", name)
    try:
        await command.run("ip", "-n", name, "-batch", "-", stdin=_LINKS.encode())
        yield netns.path(name)
    finally:
        await netns.delete(name)


@contextlib.asynccontextmanager
async def booted(kit: Kit, at: Path) -> AsyncGenerator[BareVm]:
    """Boot the template's kernel on a reflink of its disk, in the namespace `at`."""
    async with _folder(kit) as folder:
        files.reflink(kit.template.rootfs, folder / "disk")
        _memory(kit, folder).touch(mode=0o600)  # QEMU makes no file through a link
        async with _qemu(kit, folder, at, incoming=False) as vm:
            await _initialise(vm, folder.name, "boot")
            yield vm


@contextlib.asynccontextmanager
async def cloned(kit: Kit, at: Path) -> AsyncGenerator[BareVm]:
    """Continue the template's frozen VM on reflinks of its disk and memory, in the namespace `at`."""
    async with _folder(kit) as folder:
        files.reflink(kit.frozen.disk, folder / "disk")
        files.reflink(kit.frozen.hot_memory, _memory(kit, folder))
        async with _qemu(kit, folder, at, incoming=True) as vm:
            await vm.monitor.load(kit.frozen.state)
            await _initialise(vm, folder.name, "fork")
            yield vm


class Monitor:
    """QEMU's control socket, as far as it is needed here."""

    def __init__(self, folder: Path) -> None:
        self._moved: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._qmp = Qmp(qmp.connect(folder / "qmp.sock"), self._on_event, lambda: None)

    async def greet(self) -> None:
        """Open the conversation; before anything else."""
        await self._qmp.negotiate()

    async def load(self, state: Path) -> None:
        """Take in a device state and let the vCPUs run."""
        capabilities = [{"capability": name, "state": True} for name in ("x-ignore-shared", "events")]
        await self._qmp.execute("migrate-set-capabilities", {"capabilities": capabilities})
        with state.open("rb") as saved:
            await self._qmp.execute("getfd", {"fdname": "state"}, fds=(saved.fileno(),))
            await self._qmp.execute("migrate-incoming", {"uri": "fd:state"})
            async with asyncio.timeout(_START_S):
                if (result := await self._moved) != "completed":
                    raise RuntimeError(f"QEMU did not take the device state in: {result}")
        await self._qmp.execute("cont")

    async def halt(self) -> float:
        """Stop the vCPUs, let them run again, and return the milliseconds of both."""
        began = time.monotonic()
        await self._qmp.execute("stop")
        await self._qmp.execute("cont")
        return ms_since(began)

    def close(self) -> None:
        """End the conversation."""
        self._qmp.close()

    def _on_event(self, name: str, data: Json) -> None:
        status = str(data.get("status"))
        if name == "MIGRATION" and status in {"completed", "failed"} and not self._moved.done():
            self._moved.set_result(status)


@contextlib.asynccontextmanager
async def _qemu(kit: Kit, folder: Path, at: Path, *, incoming: bool) -> AsyncGenerator[BareVm]:
    tap = netns.inside(at, _attach)
    try:
        spec = BootSpec(
            sandbox=SandboxId(folder.name),
            vm_dir=folder,
            disk=folder / "disk",
            memory=folder / "mem",
            kernel=kit.template.kernel,
            initrd=kit.template.initrd,
            uid=0,
            vcpus=kit.vcpus,
            memory_mib=kit.memory_mib,
            tap_fd=tap,
        )
        with qmp.listen(folder / "qmp.sock") as listening:
            fd = listening.fileno()
            jailed = argv(spec, kit.accelerator, name=folder.name, qmp_fd=fd, incoming=incoming, log_level=QUIET)
            program = [_outside(argument, folder) for argument in jailed]
            process = await asyncio.create_subprocess_exec(
                *program, pass_fds=(fd, tap), stdin=asyncio.subprocess.DEVNULL
            )
            monitor = Monitor(folder)
    finally:
        os.close(tap)
    try:
        await monitor.greet()
        yield BareVm(at, process.pid, secrets.token_hex(16), monitor)
    finally:
        monitor.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _initialise(vm: BareVm, name: str, reason: Reason) -> None:
    init = AgentInit(
        sandbox_id=name,
        hostname=name,
        env={},
        access_token=vm.token,
        time_unix_ns=0,  # read anew for each attempt
        entropy=base64.b64encode(secrets.token_bytes(64)).decode(),
        reason=reason,
    )
    async with asyncio.timeout(_START_S):
        await first(agent.initialise(Line(vm.netns), init), _ended(vm.pid))


async def _ended(pid: int) -> NoReturn:
    """Raise when QEMU has ended by itself, whose reason stands on our standard error."""
    ended = asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    raise RuntimeError("a bare QEMU ended by itself")


def _outside(argument: str, folder: Path) -> str:
    for inside, name in _IN_JAIL.items():
        argument = argument.replace(inside, str(folder / name))
    return argument


def _attach() -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", b"tap0", _TAP_FLAGS))
    return descriptor


def _memory(kit: Kit, folder: Path) -> Path:
    return kit.layout.memory_area / f"bench-{folder.name}"


@contextlib.asynccontextmanager
async def _folder(kit: Kit) -> AsyncGenerator[Path]:
    """Make a folder on the disk area with links to what lies elsewhere; it and the memory are removed afterwards."""
    parent = kit.layout.disk_area / "bench"
    files.make_dir(parent, mode=0o700)
    folder = parent / new_id()
    folder.mkdir()
    try:
        (folder / "mem").symlink_to(_memory(kit, folder))
        (folder / "kernel").symlink_to(kit.template.kernel)
        (folder / "initrd").symlink_to(kit.template.initrd)
        yield folder
    finally:
        shutil.rmtree(folder)
        _memory(kit, folder).unlink(missing_ok=True)
