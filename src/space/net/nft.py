"""Packet rules: the rulesets of the gateway namespace and of a slot, and how they are loaded.

A ruleset is loaded in one transaction before the links it guards are up, and only ever into a namespace of ours. In
rules below, `ct state new` without a bare SYN is refused on purpose: a packet that belongs to nobody's connection must
not open one (with loose tracking it once carried a dead slot's stream into the next guest).
"""

import dataclasses
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from space.host import command
from space.layout import Layout
from space.model import ranges
from space.wire.gateway import (
    AGENT_PORT,
    EGRESS_DNS_PORT,
    EGRESS_HTTP_PORT,
    EGRESS_RELAY_PORT,
    EGRESS_TUNNEL_PORT,
    WORKERS_PORTS,
)

UPLINK = "upl"
"""The gateway namespace's only way out (uplink.py)."""

GUEST = "169.254.0.21"
"""Address of every guest, so that a snapshot fits any slot."""

TAP = "169.254.0.22"
"""The slot's own address on the tap: what the guest sees as its peer, and from which the worker dials the agent."""

_WORKERS_PORTS = ", ".join(map(str, WORKERS_PORTS))

_GATEWAY = """
table inet space_gw {{
 set slots {{
  type ifname . ipv4_addr
 }}
 set raw {{
  type ipv4_addr . ipv4_addr . inet_service
 }}
 set cidr {{
  type ipv4_addr . ipv4_addr . inet_service
  flags interval
 }}
 set everywhere {{
  type ipv4_addr . inet_service
  flags interval
 }}
 set private_ok {{
  type ipv4_addr . inet_service
  flags interval
 }}
 set never {{
  type ipv4_addr
  flags interval
 }}
 set own {{
  type ipv4_addr
 }}
 set resolvers {{
  type ipv4_addr
 }}
 set calls {{
  type ipv4_addr
  flags dynamic
 }}
 set visits {{
  type ipv4_addr
  flags dynamic
 }}
 set muted {{
  type ipv4_addr
  flags timeout
 }}
}}
flush table inet space_gw
flush set inet space_gw never
flush set inet space_gw own
flush set inet space_gw resolvers
table inet space_gw {{
 chain antispoof {{
  type filter hook prerouting priority raw; policy accept;
  iifname . ip saddr @slots accept
  iifname "{uplink}" accept
  # the egress proxy to the gateway, which goes on through a policy's upstream proxy
  iifname "lo" ip daddr {tunnels} tcp dport {tunnel_port} accept
  iifname "lo" ip saddr {tunnels} tcp sport {tunnel_port} accept
  # what the limits below say to the ingress proxy
  iifname "lo" icmp type destination-unreachable accept
  counter drop comment "forged"
 }}
 chain quiet {{
  # what a guest opens that has used up its budget of connections that come to nothing (gateway/muting.py); before
  # connection tracking, so that it costs next to nothing
  type filter hook prerouting priority raw + 10; policy accept;
  iifname "sl*" ip saddr @muted {syn} counter reject with tcp reset comment "muted"
 }}
 chain redirects {{
  type nat hook prerouting priority dstnat;
  iifname "sl*" meta l4proto {{ tcp, udp }} th dport 53 redirect to :{dns_port}
  iifname "sl*" ip saddr . ip daddr . tcp dport @raw redirect to :{relay_port}
  iifname "sl*" ip saddr . ip daddr . tcp dport @cidr redirect to :{relay_port}
  iifname "sl*" ip daddr != {synthetic} ip saddr . tcp dport @everywhere redirect to :{relay_port}
  iifname "sl*" ip daddr {synthetic} meta l4proto tcp redirect to :{egress_port}
 }}
 chain refused {{
  # here, since what is not redirected is addressed to nobody in this namespace and would vanish without an answer
  type filter hook prerouting priority dstnat + 10; policy accept;
  ct state established accept
  iifname "sl*" ct status dnat accept
  iifname "sl*" meta l4proto tcp counter reject with tcp reset comment "refused"
  iifname "sl*" counter drop
 }}
 chain incoming {{
  type filter hook input priority filter; policy drop;
  ct state established accept
  iifname "sl*" ct status dnat tcp dport {{ {egress_port}, {relay_port}, {dns_port} }} ct state new {syn} accept
  iifname "sl*" ct status dnat udp dport {dns_port} ct state new accept
  iifname "lo" ip daddr {tunnels} tcp dport {tunnel_port} ct state new {syn} accept
  # a smaller packet is asked for on the way out; without this a large upload would stand still
  iifname "{uplink}" ct state related icmp type destination-unreachable accept
  iifname "lo" icmp type destination-unreachable accept
  counter
 }}
 chain outgoing {{
  type filter hook output priority filter; policy drop;
  ct state established accept
  # answers of the reject above belong to no connection
  oifname . ip daddr @slots tcp flags & rst == rst accept
  oifname "lo" icmp type destination-unreachable accept
  # too many at once are refused with an error that no guest can cause. The agent's are counted apart: whoever crowds a
  # guest's servers leaves its owner a way in
  oifname . ip daddr @slots meta skuid {ingress_uid} ct state new tcp dport {agent_port} add @calls {{ ip daddr ct count over {incoming} }} counter reject with icmp type admin-prohibited
  oifname . ip daddr @slots meta skuid {ingress_uid} ct state new tcp dport != {agent_port} add @visits {{ ip daddr ct count over {incoming} }} counter reject with icmp type admin-prohibited
  # only the ingress proxy opens connections into slots, and never to the agent's internal ports
  oifname . ip daddr @slots meta skuid {ingress_uid} tcp dport != {{ {workers_ports} }} {syn} accept
  oifname "lo" meta skuid {egress_uid} ip daddr {tunnels} tcp dport {tunnel_port} {syn} accept
  oifname "{uplink}" meta skuid {gateway_uid} ip daddr @resolvers meta l4proto {{ tcp, udp }} th dport 53 accept
  oifname "{uplink}" ip daddr @own counter drop
  oifname "{uplink}" ip daddr . tcp dport @private_ok meta skuid {{ {gateway_uid}, {egress_uid} }} {syn} accept
  oifname "{uplink}" ip daddr @never counter drop
  oifname "{uplink}" meta skuid {{ {gateway_uid}, {egress_uid} }} {syn} accept
  counter
 }}
 chain forwarded {{
  type filter hook forward priority filter; policy drop;
 }}
}}
"""  # noqa: E501 - nft takes a rule on one line

_SLOT = """
table netdev space_tap {{
 chain ingress {{
  type filter hook ingress device "tap0" priority -500; policy drop;
  ether type arp limit rate 50/second accept
  ip saddr != {guest} counter drop
  ip frag-off & 0x3fff != 0 counter drop
  # a flood of SYN is dropped before connection tracking, whose memory belongs to no cgroup
  ip protocol tcp tcp flags & (syn|ack) == syn limit rate over 200/second burst 400 packets counter drop
  ip protocol tcp accept
  udp dport 53 limit rate over 200/second burst 400 packets counter drop
  udp dport 53 accept
  counter comment "other"
 }}
}}
table inet space_slot {{
 set connections {{
  type ipv4_addr
  flags dynamic
 }}
 chain pre_dnat {{
  type nat hook prerouting priority dstnat;
  # the agent's internal ports take whatever comes from the tap's address for ours: they are never translated to
  iifname "up0" ip saddr {gateway} ip daddr {slot} tcp dport != {{ {workers_ports} }} dnat ip to {guest}
  # whichever name server the guest asks, ours answers
  iifname "tap0" meta l4proto {{ tcp, udp }} th dport 53 dnat ip to {gateway}
 }}
 chain post_snat {{
  type nat hook postrouting priority srcnat;
  oifname "up0" snat ip to {slot}
  oifname "tap0" snat ip to {tap}
 }}
 chain forwarded {{
  type filter hook forward priority filter; policy drop;
  # a connection of another life of this guest (a restore, a fork) ends aloud
  iifname "tap0" ct state invalid meta l4proto tcp counter reject with tcp reset
  ct state invalid counter drop
  ct state established accept
  iifname "up0" oifname "tap0" ct state new ct status dnat {syn} accept
  iifname "tap0" oifname "up0" meta l4proto tcp ct state new add @connections {{ ip saddr ct count over {connections} }} counter reject with tcp reset
  # where to is the gateway namespace's to judge
  iifname "tap0" oifname "up0" ct state new {syn} accept
  iifname "tap0" oifname "up0" ct state new udp dport 53 accept
  # refused aloud, so that a guest's program fails at once instead of waiting
  iifname "tap0" meta l4proto tcp counter reject with tcp reset
  counter
 }}
 chain incoming {{
  type filter hook input priority filter; policy drop;
  ct state established accept
  iifname "tap0" meta l4proto tcp counter reject with tcp reset
  counter
 }}
}}
"""  # noqa: E501 - nft takes a rule on one line

_SYN = "tcp flags & (fin|syn|rst|ack) == syn"

CONNECTIONS = 512
"""Open connections of one guest at once; the gateway's table of 65,536 then holds well over a hundred greedy ones."""

INCOMING = 512
"""Open connections to a guest's agent, and as many to all its other ports together: a thirtieth of what the ingress
proxy carries (proxy/parts.py: MAX_CONNECTIONS), so that a crowd at one sandbox is none at the others."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reach:
    """What the gateway namespace may reach by its uplink.

    `own`: addresses of the host (or whatever is behind the uplink) itself. `resolvers`: the name servers that the
    gateway asks; they may be private. `exceptions`: see model/ranges.py.
    """

    own: Sequence[IPv4Address] = ()
    resolvers: Sequence[IPv4Address] = ()
    exceptions: Sequence[IPv4Network] = ()


def gateway_ruleset(layout: Layout, reach: Reach) -> str:
    """Return the rules of the gateway namespace. Loading them again keeps slots, what is open to them, connections."""
    rules = _GATEWAY.format(
        uplink=UPLINK,
        synthetic=ranges.SYNTHETIC,
        ingress_uid=layout.ingress_uid,
        egress_uid=layout.egress_uid,
        gateway_uid=layout.gateway_uid,
        agent_port=AGENT_PORT,
        workers_ports=_WORKERS_PORTS,
        incoming=INCOMING,
        egress_port=EGRESS_HTTP_PORT,
        relay_port=EGRESS_RELAY_PORT,
        tunnel_port=EGRESS_TUNNEL_PORT,
        tunnels=ranges.TUNNELS,
        dns_port=EGRESS_DNS_PORT,
        syn=_SYN,
    )
    for name, members in (
        ("never", ranges.refused(reach.exceptions)),
        ("own", reach.own),
        ("resolvers", reach.resolvers),
    ):
        if members:
            rules += f"add element inet space_gw {name} {{ {', '.join(map(str, members))} }}\n"
    return rules


def slot_ruleset(gateway: str, slot: str) -> str:
    """Return the rules of one slot, for a namespace where its `tap0` exists already (a netdev chain names it)."""
    return _SLOT.format(
        gateway=gateway,
        slot=slot,
        agent_port=AGENT_PORT,
        workers_ports=_WORKERS_PORTS,
        guest=GUEST,
        tap=TAP,
        syn=_SYN,
        connections=CONNECTIONS,
    )


def _element(verb: str, link: str, address: str) -> str:
    return f'{verb} element inet space_gw slots {{ "{link}" . {address} }}\n'


async def load(netns: Path, ruleset: str) -> None:
    """Load a ruleset into a namespace, all of it or nothing; CommandError with nft's message otherwise."""
    await command.run("nft", "-f", "-", stdin=ruleset.encode(), netns=netns)


async def add_slot(netns: Path, link: str, address: str) -> None:
    """Make the gateway namespace accept packets of `address` on `link`, and the ingress proxy's towards it."""
    await load(netns, _element("add", link, address))


async def remove_slot(netns: Path, link: str, address: str) -> None:
    """Undo `add_slot`; nothing happens when it is not there."""
    # Adding first makes the deletion succeed in every case, in the same transaction; the set is not there where an
    # older version has made the namespace, and `space down` is the first that is run of this one.
    muted = "add set inet space_gw muted { type ipv4_addr; flags timeout; }\n"
    muted += "".join(f"{verb} element inet space_gw muted {{ {address} }}\n" for verb in ("add", "delete"))
    await load(netns, _element("add", link, address) + _element("delete", link, address) + muted)


async def mute(netns: Path, address: str, seconds: float) -> None:
    """Refuse new TCP connections from a slot's address, for so long; a time that was set before counts no more."""
    element = f"inet space_gw muted {{ {address}"
    script = f"add element {element} }}\ndelete element {element} }}\n"
    await load(netns, f"{script}add element {element} timeout {round(seconds * 1000)}ms }}\n")
