"""Network namespaces: where they are, and doing one thing inside one from a process that stays outside.

`setns` changes the calling thread only. Each use takes a thread of its own that ends afterwards, so no thread of a pool
is ever left in a foreign namespace.
"""

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from space.host import command

NETNS_DIR = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


def path(name: str) -> Path:
    """Return the path of a named network namespace (the place `ip netns` uses)."""
    return NETNS_DIR / name


def names(prefix: str) -> list[str]:
    """Return the names of the network namespaces that begin with `prefix`."""
    if not NETNS_DIR.is_dir():
        return []
    return sorted(entry.name for entry in NETNS_DIR.iterdir() if entry.name.startswith(prefix))


def inside(netns: Path, action: Callable[[], T]) -> T:
    """Call `action` in a thread inside `netns` and return what it returns, or raise what it raised.

    Blocks while it runs: keep it to making a socket or opening a device (well under a millisecond).
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number), str(netns))
            finally:
                os.close(descriptor)
            results.append(action())
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=body, name="netns")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def tcp_socket(netns: Path) -> socket.socket:
    """Return a non-blocking TCP socket that lives in `netns`; connections made on it start there."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        made.setblocking(False)
        return made

    return inside(netns, make)


def tcp_listens(netns: Path, port: int) -> bool:
    """Tell whether something in `netns` listens at a TCP port (IPv4), without a packet that its rules could refuse."""
    wanted, listen = f":{port:04X}", "0A"
    table = inside(netns, lambda: Path("/proc/thread-self/net/tcp").read_text())
    rows = (line.split() for line in table.splitlines()[1:])
    return any(row[1].endswith(wanted) and row[3] == listen for row in rows)


async def delete(name: str) -> None:
    """Delete a namespace; nothing happens when there is none. Devices in it go with it, some milliseconds later."""
    if path(name).exists():
        await command.run("ip", "netns", "delete", name, check=False)


def write_sysctls(netns: Path, values: Mapping[str, int]) -> None:
    """Set kernel parameters of a network namespace, by their dotted names (`net.ipv4.ip_forward`), in order.

    /proc/sys/net shows the namespace of the thread that opens it, so no /proc of the namespace's own is needed.
    """

    def write() -> None:
        for name, value in values.items():
            Path("/proc/sys", *name.split(".")).write_text(str(value))

    inside(netns, write)
