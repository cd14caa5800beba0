"""IPv4 ranges that no sandbox reaches unless its policy names them exactly: private, special and our own.

The packet rules of the gateway namespace and the gateway's screening of resolved names use the same list.
"""

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Network

SLOTS = IPv4Network("100.64.0.0/10")
"""Where slots have their addresses (RFC 6598); also carriers' networks."""

SYNTHETIC = IPv4Network("198.18.0.0/15")
"""Addresses that stand for names in a guest (RFC 2544: for tests of devices, on no real network)."""

TUNNELS = IPv4Network("127.64.0.0/10")
"""Loopback addresses of the gateway's namespace, each of which stands for a place behind a policy's upstream proxy."""

NEVER = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # Linux takes it for loopback: of whoever dials
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's wire server, in the middle of a public range
        "169.254.0.0/16",  # metadata services, and our links
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
"""IANA's special-purpose registry (RFC 6890) and cloud providers' services, without overlaps."""


def refused(exceptions: Iterable[IPv4Network] = ()) -> tuple[IPv4Network, ...]:
    """Return NEVER without `exceptions`, each of which lies inside one of its ranges; ValueError for one that does not.

    Exceptions are for test worlds, whose internet has addresses that are set apart for documentation.
    """
    left = list(NEVER)
    for exception in exceptions:
        around = next((network for network in left if exception.subnet_of(network)), None)
        if around is None:
            raise ValueError(f"{exception} lies in none of the ranges that are refused")
        left.remove(around)
        left.extend(around.address_exclude(exception))
    return tuple(ipaddress.collapse_addresses(left))
