"""The gateway namespace: where every slot's link ends and both node proxies live. It forwards nothing.

It has no way to the host's networks. Made once for an instance; a worker that restarts applies everything again, which
leaves the links, the set of slots and the connections of live slots alone.
"""

from space.host import command, netns
from space.layout import Layout
from space.net import nft
from space.wire.gateway import AGENT_PORT

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
}

_LINKS = """
link set lo up
route replace unreachable 100.64.0.0/10
route replace unreachable 198.18.0.0/15
"""
"""Without these two routes, packets for a slot that is gone would follow the default route out of the host."""


async def ensure(layout: Layout) -> None:
    """Make the namespace, or bring an existing one to what it must be."""
    name = layout.gateway_netns
    path = netns.path(name)
    if not path.exists():
        await command.run("ip", "netns", "add", name)
    await nft.load(path, nft.gateway_ruleset(layout.ingress_uid, AGENT_PORT))
    netns.write_sysctls(path, _SYSCTLS)
    await command.run("ip", "-n", name, "-batch", "-", stdin=_LINKS.encode())


async def remove(layout: Layout) -> None:
    """Delete the namespace, and with it every link of a slot; fine when there is none. Slots must be gone by then."""
    await netns.delete(layout.gateway_netns)
