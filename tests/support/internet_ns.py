"""Two network namespaces that play the world outside: a host with its own addresses and services, and an internet.

    [gateway namespace] upl -- [host: 203.0.113.1, 10.99.0.1, 169.254.169.254] -- [internet: 203.0.113.10 to .99]

The host is where the uplink leads; it forwards. No route leads to the machine's real network. The addresses are those
of RFC 5737 (TEST-NET-3), so a deployment takes `never_except=203.0.113.0/24`.
"""

import contextlib
import dataclasses
import secrets
import string
from collections.abc import AsyncGenerator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from space.host import command, netns

NETWORK = IPv4Network("203.0.113.0/24")
HOST_PUBLIC, HOST_PRIVATE, METADATA = "203.0.113.1", "10.99.0.1", "169.254.169.254"
RESOLVER = IPv4Address("203.0.113.53")
FIRST, LAST = 10, 99
"""Last octets of the addresses that the internet has."""


@dataclasses.dataclass(frozen=True)
class Outside:
    """The names of both namespaces."""

    host: str
    internet: str

    @property
    def host_path(self) -> Path:
        """Where the host's namespace is."""
        return netns.path(self.host)

    @property
    def internet_path(self) -> Path:
        """Where the internet's namespace is."""
        return netns.path(self.internet)


@contextlib.asynccontextmanager
async def outside() -> AsyncGenerator[Outside]:
    """Make both, joined; gone at the end."""
    tag = "".join(secrets.choice(string.ascii_lowercase) for _ in range(4))
    made = Outside(f"outside-{tag}-host", f"outside-{tag}-net")
    try:
        for name in (made.host, made.internet):
            await command.run("ip", "netns", "add", name)
            netns.write_sysctls(netns.path(name), {"net.ipv6.conf.all.disable_ipv6": 1})
        await _ip(
            made.host,
            "link set lo up",
            f"link add out0 type veth peer name in0 netns {made.internet}",
            f"address add {HOST_PUBLIC}/24 dev out0",
            f"address add {HOST_PRIVATE}/24 dev out0",
            f"address add {METADATA}/32 dev lo",
            "link set out0 up",
            "route add default via 203.0.113.10",
        )
        await _ip(
            made.internet,
            "link set lo up",
            *(f"address add 203.0.113.{last}/24 dev in0" for last in range(FIRST, LAST + 1)),
            "address add 10.99.0.5/24 dev in0",
            "link set in0 up",
        )
        yield made
    finally:
        for name in (made.host, made.internet):
            await netns.delete(name)


async def _ip(namespace: str, *lines: str) -> None:
    await command.run("ip", "-n", namespace, "-batch", "-", stdin="\n".join(lines).encode())
