"""The networks a policy may name, and the ones it may not, whatever else it says."""

from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError

from space.model import ranges
from space.model.errors import InvalidArgument

PRIVATE = tuple(IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
"""Reached only by a rule that names a part of one of them, so that nobody opens his own network by accident."""

_DOCUMENTATION = tuple(IPv4Network(text) for text in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"))
"""On no real network, so a policy may name them; the gateway dials them only where a test world says so."""

NEVER = tuple(found for found in ranges.NEVER if found not in (*PRIVATE, *_DOCUMENTATION))
"""No policy reaches these."""


EVERYWHERE = IPv4Network("0.0.0.0/0")
"""In a rule, every address that is neither private nor in NEVER: the public internet."""


def holds(network: IPv4Network, address: IPv4Address) -> bool:
    """Tell whether a rule about `network` is about an address."""
    if network != EVERYWHERE:
        return address in network
    return not any(address in refused for refused in (*PRIVATE, *NEVER))


def network(text: str) -> IPv4Network:
    """Read `a.b.c.d/n` (or an address, which is /32); raises InvalidArgument for one that a policy may not name."""
    try:
        found = IPv4Network(text)
    except (AddressValueError, NetmaskValueError, ValueError) as error:
        raise InvalidArgument(f"{text[:50]!r} is no IPv4 network like 203.0.113.0/24: {error}.") from error
    if found == EVERYWHERE:
        return found
    for never in NEVER:
        if found.overlaps(never):
            raise InvalidArgument(f"{found} overlaps {never}, which no policy may open.")
    for private in PRIVATE:
        if found.overlaps(private) and not found.subnet_of(private):
            raise InvalidArgument(f"{found} contains the private network {private}; name the part of it that is meant.")
    return found


def is_address(text: str) -> bool:
    """Tell whether a text is a dotted IPv4 address in its one canonical form."""
    try:
        return str(IPv4Network(text).network_address) == text
    except ValueError:
        return False
