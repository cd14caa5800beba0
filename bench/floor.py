"""The floor of a create: the same QEMU, kernel, initramfs and disk, started directly, to the agent's first answer.

No jail, no control group, no slot rules, no proxies, no database: what remains is the VMM and the guest. Namespace,
tap and disk copy are made before the clock starts.
"""

import asyncio
import base64
import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import struct
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NoReturn

from space.guest.agent import initialise
from space.host import command, files, netns
from space.host.tasks import first
from space.image.catalog import TemplateFiles
from space.layout import Layout
from space.model.ids import SandboxId, new_id
from space.vmm import tsc
from space.vmm.driver import GUEST_MAC, BootSpec
from space.vmm.qemu import QUIET
from space.vmm.qemu_command import DISK, INITRD, KERNEL, MEMORY, Accelerator, argv
from space.wire.agent import AgentInit

_IN_JAIL = {DISK: "disk", MEMORY: "mem", KERNEL: "kernel", INITRD: "initrd"}
_TAP = 0x0002 | 0x1000 | 0x4000  # IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
_TUNSETIFF = 0x400454CA
_LINKS = f"""
tuntap add dev tap0 mode tap vnet_hdr
address add 169.254.0.22/30 dev tap0
link set tap0 up
neighbour replace 169.254.0.21 lladdr {GUEST_MAC} dev tap0 nud permanent
"""


async def accelerator(name: str) -> Accelerator:
    """Return the accelerator that the worker uses, by its name."""
    return Accelerator(name, await tsc.measure_khz() if name == "tcg" else 0)


async def boot_ms(layout: Layout, template: TemplateFiles, how: Accelerator, vcpus: int, memory_mib: int) -> float:
    """Boot once and return the milliseconds from the start of QEMU to the agent's answer to its initialisation."""
    sandbox = SandboxId(new_id())
    async with _place(layout) as place, _files(layout, template, sandbox) as folder:
        tap = netns.inside(place, _attach)
        spec = BootSpec(
            sandbox=sandbox,
            vm_dir=folder,
            disk=folder / "disk",
            memory=folder / "mem",
            kernel=template.kernel,
            initrd=template.initrd,
            uid=0,
            vcpus=vcpus,
            memory_mib=memory_mib,
            tap_fd=tap,
        )
        with socket.socket(socket.AF_UNIX) as qmp:
            qmp.bind(str(folder / "qmp"))
            qmp.listen()
            jailed = argv(spec, how, name=sandbox, qmp_fd=qmp.fileno(), incoming=False, log_level=QUIET)
            program = [_outside(argument, folder) for argument in jailed]
            began = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *program, pass_fds=(qmp.fileno(), tap), stdin=asyncio.subprocess.DEVNULL
            )
            os.close(tap)
            try:
                async with asyncio.timeout(60):
                    await first(initialise(place, _init(sandbox)), _ended(process))
                return (time.monotonic() - began) * 1000
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def _ended(process: asyncio.subprocess.Process) -> NoReturn:
    raise RuntimeError(f"QEMU ended by itself with {await process.wait()}")


def _outside(argument: str, folder: Path) -> str:
    for inside, name in _IN_JAIL.items():
        argument = argument.replace(inside, str(folder / name))
    return argument


def _init(sandbox: SandboxId) -> AgentInit:
    return AgentInit(
        sandbox_id=sandbox,
        hostname=sandbox,
        env={},
        access_token=secrets.token_hex(16),
        time_unix_ns=time.time_ns(),
        entropy=base64.b64encode(secrets.token_bytes(64)).decode(),
    )


def _attach() -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", b"tap0", _TAP))
    return descriptor


@contextlib.asynccontextmanager
async def _place(layout: Layout) -> AsyncGenerator[Path]:
    """Make a namespace with a tap and nothing else; its name is none of a slot's, so the worker leaves it alone."""
    name = f"bench-{layout.instance}-{secrets.token_hex(2)}"
    await command.run("ip", "netns", "add", name)
    try:
        await command.run("ip", "-n", name, "-batch", "-", stdin=_LINKS.encode())
        yield netns.path(name)
    finally:
        await netns.delete(name)


@contextlib.asynccontextmanager
async def _files(layout: Layout, template: TemplateFiles, sandbox: SandboxId) -> AsyncGenerator[Path]:
    """Make a folder on the disk area with the disk's reflink, and links to memory, kernel and initramfs."""
    folder, memory = layout.disk_area / f"bench-{sandbox}", layout.memory_area / f"bench-{sandbox}"
    folder.mkdir()
    try:
        files.reflink(template.rootfs, folder / "disk")
        memory.touch(mode=0o600)  # QEMU makes no file through a link
        (folder / "mem").symlink_to(memory)
        (folder / "kernel").symlink_to(template.kernel)
        (folder / "initrd").symlink_to(template.initrd)
        yield folder
    finally:
        shutil.rmtree(folder)
        memory.unlink(missing_ok=True)
