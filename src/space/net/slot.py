"""A slot: the network place of one VM. One namespace with `tap0` for the VMM and one link to the gateway namespace.

    guest 169.254.0.21 -- tap0 169.254.0.22 [slot: rules, translation] up0 100.64.x.y+1 -- sl<n> 100.64.x.y [gateway]

All guests have the same address; the slot gives each its own. Both ends of the link are made inside their namespaces
and never appear among the host's devices. Making one takes about 10 ms, so they are made ahead (pool.py). A slot serves
one VM and is destroyed.
"""

import asyncio
import dataclasses
import fcntl
import os
import re
import socket
import struct
from collections.abc import Collection

from space.host import command, netns
from space.layout import Layout
from space.net import addresses, nft

TAP_MAC = "06:00:a9:fe:00:16"
"""The same in every slot: a restored guest still has it in its neighbour table."""

_UP_MAC, _GATEWAY_MAC = "06:00:64:40:00:01", "06:00:64:40:00:00"
_TUNSETIFF = 0x400454CA
_AT_ONCE = 200
"""Ports in one call of ss: its filter is compiled to a program of limited length."""
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000

_SYSCTLS_BEFORE_DEVICES = {
    "net.ipv6.conf.all.disable_ipv6": 1,
    "net.ipv6.conf.default.disable_ipv6": 1,
    **{
        f"net.ipv4.conf.{scope}.{name}": value
        for scope in ("all", "default")
        for name, value in {"rp_filter": 1, "accept_redirects": 0, "send_redirects": 0, "arp_ignore": 1}.items()
    },
    "net.ipv4.ip_forward": 1,
    # only packets of connections seen from their SYN on are ever translated (see nft.py)
    "net.netfilter.nf_conntrack_tcp_loose": 0,
    # half-open connections of a flood leave the table soon
    "net.netfilter.nf_conntrack_tcp_timeout_syn_sent": 20,
    "net.netfilter.nf_conntrack_tcp_timeout_syn_recv": 20,
    "net.netfilter.nf_conntrack_udp_timeout": 10,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """A made slot. `address` stands for the guest in the gateway namespace, `gateway_address` is the other end."""

    number: int
    netns: str
    address: str
    gateway_address: str


def describe(layout: Layout, number: int) -> Slot:
    """Return the slot of this number as it is when made; touches nothing."""
    pair = addresses.pair(number)
    return Slot(number, layout.slot_netns(number), pair.slot, pair.gateway)


def link_name(number: int) -> str:
    """Return the name of a slot's link in the gateway namespace (10 characters at most)."""
    return f"sl{number}"


def existing(layout: Layout) -> set[int]:
    """Return the numbers of the slots whose namespaces exist, half-made ones too."""
    pattern = re.compile(re.escape(layout.slot_netns(0).removesuffix("0")) + r"(\d+)")
    found = (pattern.fullmatch(name) for name in netns.names(layout.netns_prefix))
    return {int(match.group(1)) for match in found if match}


async def _ip(namespace: str, *lines: str) -> None:
    await command.run("ip", "-n", namespace, "-batch", "-", stdin="\n".join(lines).encode())


async def make(layout: Layout, number: int) -> Slot:
    """Make slot `number`: rules first, links up last. When it fails or is cancelled nothing of it is left.

    Raises CommandError. The gateway namespace must be there.
    """
    slot = describe(layout, number)
    try:
        await _make(layout, slot)
    except BaseException:
        await destroy(layout, number)
        raise
    return slot


async def _make(layout: Layout, slot: Slot) -> None:
    link, path = link_name(slot.number), netns.path(slot.netns)
    gateway = netns.path(layout.gateway_netns)
    await command.run("ip", "netns", "add", slot.netns)
    netns.write_sysctls(path, _SYSCTLS_BEFORE_DEVICES)
    await _ip(
        slot.netns,
        "tuntap add dev tap0 mode tap vnet_hdr",
        f"link add up0 address {_UP_MAC} type veth"
        f" peer name {link} netns {layout.gateway_netns} address {_GATEWAY_MAC}",
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(nft.load(path, nft.slot_ruleset(slot.gateway_address, slot.address)))
        group.create_task(nft.add_slot(gateway, link, slot.address))
    async with asyncio.TaskGroup() as group:
        # neighbours are fixed: nothing to ask, nothing to forge, and no first packet that waits
        slot_end = (
            f"link set tap0 address {TAP_MAC} up",
            f"address add {nft.TAP}/30 dev tap0",
            "link set up0 up",
            f"address add {slot.address}/31 dev up0",
            f"neighbour replace {slot.gateway_address} lladdr {_GATEWAY_MAC} dev up0 nud permanent",
            f"route add default via {slot.gateway_address} dev up0",
        )
        gateway_end = (
            f"link set {link} up",
            f"address add {slot.gateway_address}/31 dev {link}",
            f"neighbour replace {slot.address} lladdr {_UP_MAC} dev {link} nud permanent",
        )
        group.create_task(_ip(slot.netns, *slot_end))
        group.create_task(_ip(layout.gateway_netns, *gateway_end))


async def destroy(layout: Layout, number: int) -> None:
    """Take a slot apart; fine when it is half made or gone.

    From the moment it leaves the set nothing can connect to its address, so after the sockets are destroyed none is
    left: a stream of the dead VM ends, and no pooled connection waits for the address to come back. The link goes
    before the namespace, since a namespace's own end comes some milliseconds after its deletion.
    """
    slot = describe(layout, number)
    link, gateway = link_name(number), netns.path(layout.gateway_netns)
    if gateway.exists():
        await nft.remove_slot(gateway, link, slot.address)
        await kill_sockets(layout, slot.address)
        await command.run("ip", "-n", layout.gateway_netns, "link", "delete", link, check=False)
    await netns.delete(slot.netns)


async def kill_sockets(layout: Layout, address: str) -> None:
    """End every connection between the gateway namespace and a slot's address at once (SOCK_DESTROY; root for that).

    Their other ends, clients' streams among them, see the end within milliseconds.
    """
    gateway = netns.path(layout.gateway_netns)
    await command.run("ss", "--kill", "--no-header", "--tcp", "dst", address, netns=gateway)


async def kill_connections(layout: Layout, address: str, port: int, peers: Collection[int] | None) -> None:
    """End connections from a slot's address to a port of the gateway namespace at once; likewise.

    `peers` are the slot's ports of those that are meant; None means all.
    """
    gateway = netns.path(layout.gateway_netns)
    meant = ("dst", address, "and", "sport", "=", f":{port}")
    if peers is None:
        await command.run("ss", "--kill", "--no-header", "--tcp", *meant, netns=gateway)
        return
    ordered = sorted(peers)
    for start in range(0, len(ordered), _AT_ONCE):
        ports = " or ".join(f"dport = :{peer}" for peer in ordered[start : start + _AT_ONCE]).split()
        await command.run("ss", "--kill", "--no-header", "--tcp", *meant, "and", "(", *ports, ")", netns=gateway)


def open_tap(slot: Slot) -> int:
    """Return a descriptor of the slot's tap for the VMM (with virtio headers, without packet info).

    Opened by root inside the slot's namespace, so that the VMM needs neither. OSError when there is no tap or another
    has it open.
    """

    def attach() -> int:
        socket.if_nametoindex("tap0")  # TUNSETIFF would make a missing one
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        try:
            request = struct.pack("16sH22x", b"tap0", _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR)
            fcntl.ioctl(descriptor, _TUNSETIFF, request)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    return netns.inside(netns.path(slot.netns), attach)
