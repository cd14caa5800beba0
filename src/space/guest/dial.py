"""Connections to one guest's agent that start inside the slot's namespace."""

import asyncio
import socket
from pathlib import Path

from space.host.netns import tcp_socket

GUEST_ADDRESS = "169.254.0.21"
_CONNECT_S, _LONGEST_CONNECT_S = 0.1, 3.0
"""Short at first: a SYN sent before the guest's network is up is lost, and the kernel repeats it only after 1 s."""
_MORE_PATIENCE = 1.1
"""After each failure: a guest on a host that is overrun takes longer. So each attempt is a tenth of all before it."""


class NotConnected(OSError):
    """The guest did not take the connection in time; nothing was said to it."""


class Dial:
    """Makes connections to a port of the guest's from inside `netns`."""

    def __init__(self, netns: Path, port: int) -> None:
        self._netns, self._port = netns, port
        self._connect_s = _CONNECT_S

    async def connect(self) -> socket.socket:
        """Return a new connection, non-blocking; raises NotConnected, OSError."""
        raw = tcp_socket(self._netns)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._connect_s):
                await asyncio.get_running_loop().sock_connect(raw, (GUEST_ADDRESS, self._port))
        except BaseException as error:
            raw.close()
            if isinstance(error, TimeoutError):
                self._connect_s = min(_MORE_PATIENCE * self._connect_s, _LONGEST_CONNECT_S)
                raise NotConnected from error
            raise
        self._connect_s = _CONNECT_S
        return raw


def is_quiet(raw: socket.socket) -> bool:
    """Tell whether a connection is still open, and the guest has said nothing on it that was not read."""
    try:
        raw.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False  # its end, or words that nobody asked for
