"""The gateway namespace: where every slot's link ends and both node proxies live. It forwards nothing.

Its one way out is the uplink (uplink.py). Made once for an instance; a worker that restarts applies everything again,
which leaves the links, the set of slots and the connections of live slots alone.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network

from space.host import command, netns
from space.layout import Layout
from space.net import nft, uplink
from space.net.nft import Reach

_SYSCTLS = {
    "net.ipv6.conf.all.disable_ipv6": 1,
    "net.ipv6.conf.default.disable_ipv6": 1,
    "net.ipv4.ip_forward": 0,
    **{
        f"net.ipv4.conf.{scope}.{name}": value
        for scope in ("all", "default")
        for name, value in {"rp_filter": 1, "accept_redirects": 0, "send_redirects": 0, "arp_ignore": 1}.items()
    },
    "net.netfilter.nf_conntrack_tcp_loose": 0,
    "net.netfilter.nf_conntrack_tcp_timeout_syn_sent": 20,
    "net.netfilter.nf_conntrack_tcp_timeout_syn_recv": 20,
    "net.netfilter.nf_conntrack_udp_timeout": 10,
}

_LINKS = """
link set lo up
route replace unreachable 100.64.0.0/10
route replace unreachable 198.18.0.0/15
"""
"""Without these two routes, packets for a slot that is gone would follow the default route out of the host."""


async def ensure(
    layout: Layout, way_out: str, resolvers: Sequence[IPv4Address], exceptions: Sequence[IPv4Network]
) -> None:
    """Make the namespace and its uplink, or bring existing ones to what they must be.

    `way_out` as for uplink.ensure, `exceptions` as for model/ranges.py.
    """
    name = layout.gateway_netns
    path = netns.path(name)
    if not path.exists():
        await command.run("ip", "netns", "add", name)
    own = await uplink.own_addresses(way_out)
    await nft.load(path, nft.gateway_ruleset(layout, Reach(own, resolvers, exceptions)))
    netns.write_sysctls(path, _SYSCTLS)
    await command.run("ip", "-n", name, "-batch", "-", stdin=_LINKS.encode())
    await uplink.ensure(layout, way_out, resolvers)


async def remove(layout: Layout) -> None:
    """Delete uplink and namespace, and with it every link of a slot; fine when there is none. Slots must be gone."""
    await uplink.remove(layout)
    await netns.delete(layout.gateway_netns)
