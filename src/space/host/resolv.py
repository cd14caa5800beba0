"""Which name servers a network asks: what its resolv.conf says (resolv.conf(5))."""

import ipaddress
from ipaddress import IPv4Address
from pathlib import Path

_HOST = Path("/etc/resolv.conf")
_BEHIND_STUB = Path("/run/systemd/resolve/resolv.conf")
"""Where systemd-resolved keeps the servers that it asks itself; in _HOST it names its own address on loopback."""


def name_servers(namespace: str | None = None) -> tuple[IPv4Address, ...]:
    """Return the IPv4 name servers of the host, or those that ip-netns(8) has for a namespace; () where none is known.

    Servers on loopback are left out: they answer nobody who asks from another namespace.
    """
    own = () if namespace is None else _read(Path("/etc/netns", namespace, "resolv.conf"))
    return own or _read(_HOST) or _read(_BEHIND_STUB)


def _read(path: Path) -> tuple[IPv4Address, ...]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ()
    words = [line.split() for line in lines]
    texts = [found[1] for found in words if len(found) > 1 and found[0] == "nameserver"]
    servers = [address for text in texts if (address := _address(text)) is not None and not address.is_loopback]
    return tuple(dict.fromkeys(servers))


def _address(text: str) -> IPv4Address | None:
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        return None
