"""Addresses of slots: a running number gives a pair in 100.64.0.0/10 (RFC 6598), and numbers come from a counter.

Each slot is a /31 (RFC 3021): the even address is the gateway namespace's end, the odd one stands for the guest. A
number is used once until the counter wraps after two million, so that nothing that still remembers a dead slot (a
pooled connection, a connection table, a guest that was moved) can meet the next guest at its address.
"""

import dataclasses
import ipaddress

from space.host.counter import Counter
from space.layout import Layout

NETWORK = ipaddress.IPv4Network("100.64.0.0/10")
LAST_NUMBER = NETWORK.num_addresses // 2 - 1
"""Numbers are 1 to this: the first pair holds the network's own address and stays unused."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """The two ends of a slot's link."""

    gateway: str
    slot: str


def pair(number: int) -> Pair:
    """Return the addresses of slot `number`; ValueError outside 1 to LAST_NUMBER."""
    if not 1 <= number <= LAST_NUMBER:
        raise ValueError(f"slot number {number} is not between 1 and {LAST_NUMBER}")
    first = NETWORK.network_address + 2 * number
    return Pair(gateway=str(first), slot=str(first + 1))


def numbers(layout: Layout) -> Counter:
    """Return the counter of an instance's slots."""
    return Counter(layout.data_dir / "worker" / "next-slot", last=LAST_NUMBER)
