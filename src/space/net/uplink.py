"""The gateway namespace's way out: one link to where the internet is, translation and rules of ours at its far end.

    [gateway namespace] upl 169.254.x.y+1 -- spaceup-<instance> 169.254.x.y [host: masquerade, forward] -- the internet

The far end is the host's own network namespace, or another one by name: a namespace that a VPN ends in, or a test's.
There, nothing that comes over the link may end (the host's services are not for guests, whatever addresses the host has
just now, and the name servers are the one exception); it is only passed on, translated; and only answers come back.

All of ours there has our instance's name and is removed by it: the link, and the table `space_up_<instance>`. Where the
host did not forward packets before, it is made to, and the table `space_closed`, which the instances share, keeps
everything else as unforwarded as it was.
"""

import json
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path

from space.host import command, netns
from space.layout import UID_RANGE_FIRST, UID_RANGE_SIZE, Layout
from space.model.errors import InvalidArgument
from space.net.nft import UPLINK

HOST, NONE = "host", "none"
PREFIX = "spaceup-"
"""What the names of all instances' links begin with."""
_FIRST = IPv4Address("169.254.96.0")
"""Links take a /31 each from 169.254.96.0/19: of the 4,096 instances that a host can have, each its own."""

_FAR_END = """
table inet space_up_{instance}
delete table inet space_up_{instance}
table inet space_up_{instance} {{
 chain arriving {{
  # before any translation of the host's: a published port of a container is an address of the host, too
  type filter hook prerouting priority raw; policy accept;
  iifname "{link}" ip saddr != {near} counter drop
  {resolvers}
  iifname "{link}" fib daddr type local counter drop
  iifname "{link}" meta nfproto ipv6 counter drop
 }}
 chain forwarded {{
  type filter hook forward priority filter; policy accept;
  iifname "{link}" tcp flags syn tcp option maxseg size set rt mtu
  iifname "{link}" accept
  oifname "{link}" ct state established,related accept
  oifname "{link}" counter drop
 }}
 chain leaving {{
  type nat hook postrouting priority srcnat;
  ip saddr {near} oifname != "{link}" masquerade
 }}
}}
"""

_CLOSED = f"""
table inet space_closed
delete table inet space_closed
table inet space_closed {{
 chain forwarded {{
  type filter hook forward priority filter; policy accept;
  iifname != "{PREFIX}*" oifname != "{PREFIX}*" counter drop
 }}
}}
"""


def link_name(layout: Layout) -> str:
    """Return the name of the link's far end (12 characters)."""
    return f"{PREFIX}{layout.instance}"


def addresses(layout: Layout) -> tuple[IPv4Address, IPv4Address]:
    """Return (far, near) end: a pair that no other instance of this host has, since no other has its user ids."""
    number = (layout.uid_base - UID_RANGE_FIRST) // UID_RANGE_SIZE
    return _FIRST + 2 * number, _FIRST + 2 * number + 1


def place(uplink: str) -> Path | None:
    """Return the namespace where the far end is (None: our own). Raises InvalidArgument where there is none."""
    if uplink == HOST:
        return None
    if not netns.path(uplink).exists():
        raise InvalidArgument(f"There is no network namespace {uplink!r} for SPACE_UPLINK; `ip netns` lists them.")
    return netns.path(uplink)


async def ensure(layout: Layout, uplink: str, resolvers: Sequence[IPv4Address]) -> None:
    """Make the link to `uplink` (HOST, NONE or a namespace's name); one to elsewhere is removed.

    The gateway namespace must be there. One that leads there already stays, and with it the connections over it.
    Raises InvalidArgument for a namespace that does not exist, CommandError.
    """
    there = None if uplink == NONE else place(uplink)
    link, gateway = link_name(layout), layout.gateway_netns
    far, near = addresses(layout)
    if uplink == NONE or not await _leads(there, link):
        await remove(layout)
    if uplink == NONE:
        return
    rules = _FAR_END.format(
        instance=layout.instance, link=link, near=near, resolvers=_for_resolvers(link, resolvers) if resolvers else ""
    )
    await _load(there, rules)
    if not await _leads(there, link):
        await _ip(there, f"link add {link} type veth peer name {UPLINK} netns {gateway}")
    await _ip(there, f"address replace {far}/31 dev {link}", f"link set {link} up")
    await _ip(
        netns.path(gateway),
        f"address replace {near}/31 dev {UPLINK}",
        f"link set {UPLINK} up",
        f"route replace default via {far} dev {UPLINK}",
    )
    await _forward(there)


def _for_resolvers(link: str, resolvers: Sequence[IPv4Address]) -> str:
    servers = ", ".join(map(str, resolvers))
    return f'iifname "{link}" ip daddr {{ {servers} }} meta l4proto {{ tcp, udp }} th dport 53 accept'


async def remove(layout: Layout) -> None:
    """Remove the link and what is ours at its far end, wherever that is; fine when there is nothing.

    Forwarding is turned off again where we turned it on and no other instance needs it.
    """
    gateway = netns.path(layout.gateway_netns)
    if gateway.exists():
        await command.run("ip", "-n", layout.gateway_netns, "link", "delete", UPLINK, check=False)
    elsewhere = (netns.path(name) for name in netns.names("") if not name.startswith("space-"))
    for there in (None, *elsewhere):
        tables = await _tables(there)
        if f"space_up_{layout.instance}" not in tables:
            continue
        await command.run("nft", "delete", "table", "inet", f"space_up_{layout.instance}", netns=there)
        others = any(name.startswith("space_up_") and name != f"space_up_{layout.instance}" for name in tables)
        if "space_closed" in tables and not others:
            await _write_forwarding(there, on=False)
            await command.run("nft", "delete", "table", "inet", "space_closed", netns=there)


async def own_addresses(uplink: str) -> tuple[IPv4Address, ...]:
    """Return the addresses that are the host's (or the namespace's) own just now."""
    if uplink == NONE:
        return ()
    told = await command.run("ip", "-json", "-4", "address", "show", netns=place(uplink))
    found = {IPv4Address(info["local"]) for device in json.loads(told.stdout) for info in device.get("addr_info", ())}
    return tuple(sorted(found))


async def _leads(there: Path | None, link: str) -> bool:
    return (await command.run("ip", "link", "show", "dev", link, netns=there, check=False)).status == 0


async def _tables(there: Path | None) -> set[str]:
    told = await command.run("nft", "list", "tables", "inet", netns=there, check=False)
    return {line.split()[-1] for line in told.stdout.splitlines() if line.strip()}


async def _forward(there: Path | None) -> None:
    if _read_forwarding(there):
        return
    await _load(there, _CLOSED)
    await _write_forwarding(there, on=True)


def _read_forwarding(there: Path | None) -> bool:
    path = Path("/proc/sys/net/ipv4/ip_forward")
    text = path.read_text() if there is None else netns.inside(there, path.read_text)
    return text.strip() == "1"


async def _write_forwarding(there: Path | None, *, on: bool) -> None:
    await command.run("sysctl", "--quiet", f"net.ipv4.ip_forward={int(on)}", netns=there)


async def _load(there: Path | None, ruleset: str) -> None:
    await command.run("nft", "-f", "-", stdin=ruleset.encode(), netns=there)


async def _ip(there: Path | None, *lines: str) -> None:
    await command.run("ip", "-batch", "-", stdin="\n".join(lines).encode(), netns=there)
