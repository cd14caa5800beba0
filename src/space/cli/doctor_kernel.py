"""Findings about the host's kernel. What can be tried without harm is tried; the rest is read."""

import asyncio
import contextlib
import json
import platform
import socket
from pathlib import Path

from space.cli.finding import Finding, Level, needed, wanted
from space.host import command
from space.host.command import CommandError
from space.layout import Layout

_KVM = Path("/dev/kvm")


async def kernel() -> list[Finding]:
    """Return what the kernel offers of what SPACE uses."""
    btrfs = "\tbtrfs" in Path("/proc/filesystems").read_text() or await _works("modprobe", "--dry-run", "btrfs")
    nft = await _works("nft", "list", "tables")
    tun = Path("/dev/net/tun").exists()
    netns = Path("/proc/self/ns/net").exists()
    userns = _number("/proc/sys/user/max_user_namespaces") > 0
    destroys = await _destroys_sockets()
    return [
        Finding(Level.OK, "kernel", platform.release()),
        needed("btrfs", _yes(btrfs), btrfs, "Use a kernel with btrfs (Debian's has it): modprobe btrfs"),
        needed("nftables", _yes(nft), nft, "Use a kernel with nf_tables (Debian's has it), as root."),
        needed("tun/tap", _yes(tun), tun, "modprobe tun; in a container, pass /dev/net/tun in."),
        needed("network namespaces", _yes(netns), netns, "Use a kernel with CONFIG_NET_NS."),
        wanted("user namespaces", _yes(userns), userns, "The jail of VMMs uses one more layer with them."),
        wanted(
            "ending sockets",
            _yes(destroys),
            destroys,
            "Without CONFIG_INET_DIAG_DESTROY a stream to a VM that died ends late. Debian's kernel has it.",
        ),
    ]


def kvm(layout: Layout | None) -> Finding:
    """Return the verdict on KVM that the last `space up` came to by booting a guest."""
    what, slow = "KVM", "Guests run in software emulation, about ten times slower. "
    if not _KVM.exists():
        return Finding(
            Level.HINT, what, f"no {_KVM}", slow + "Enable virtualisation in the firmware, or nested by the cloud."
        )
    try:
        record = (layout.run_dir / "kvm-probe.json").read_text() if layout else "{}"
        verdict = json.loads(record)
    except (FileNotFoundError, ValueError):
        verdict = {}
    if "works" not in verdict:
        return Finding(Level.OK, what, f"{_KVM} is there; `space up` finds out whether it runs a guest")
    return wanted(
        what,
        "runs guests" if verdict["works"] else f"does not run guests: {verdict.get('reason', '')}",
        bool(verdict["works"]),
        slow + "Use a host whose KVM runs ordinary guests.",
    )


async def _works(*argv: str) -> bool:
    try:
        return (await command.run(*argv, timeout_s=10, check=False)).status == 0
    except (CommandError, OSError):
        return False


async def _destroys_sockets() -> bool:
    """Tell by ending a connection of our own to ourselves."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ours = stack.enter_context(socket.create_connection(listening.getsockname()))
        port, to = ours.getsockname()[1], listening.getsockname()[1]
        if not await _works("ss", "-K", "-t", "src", "127.0.0.1", "sport", "=", f":{port}", "dport", "=", f":{to}"):
            return False
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(1):
                await loop.sock_recv(ours, 1)
        except TimeoutError:
            return False
        except OSError:
            return True
        return True


def _number(path: str) -> int:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return 0


def _yes(there: bool) -> str:
    return "yes" if there else "no"
