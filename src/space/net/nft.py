"""Packet rules: the rulesets of the gateway namespace and of a slot, and how they are loaded.

A ruleset is loaded in one transaction before the links it guards are up, and only ever into a namespace of ours. In
rules below, `ct state new` without a bare SYN is refused on purpose: a packet that belongs to nobody's connection must
not open one (with loose tracking it once carried a dead slot's stream into the next guest).
"""

from pathlib import Path

from space.host import command

GUEST = "169.254.0.21"
"""Address of every guest, so that a snapshot fits any slot."""

TAP = "169.254.0.22"
"""The slot's own address on the tap: what the guest sees as its peer, and from which the worker dials the agent."""

_GATEWAY = """
table inet space_gw {{
 set slots {{
  type ifname . ipv4_addr
 }}
}}
flush table inet space_gw
table inet space_gw {{
 chain antispoof {{
  type filter hook prerouting priority raw; policy accept;
  iifname . ip saddr @slots accept
  counter drop
 }}
 chain incoming {{
  type filter hook input priority filter; policy drop;
  ct state established accept
  meta l4proto tcp counter reject with tcp reset
  counter
 }}
 chain outgoing {{
  type filter hook output priority filter; policy drop;
  ct state established accept
  # answers of the reject above belong to no connection
  oifname . ip daddr @slots tcp flags & rst == rst accept
  # only the ingress proxy opens connections, and only to the agent of a slot that is there
  oifname . ip daddr @slots meta skuid {ingress_uid} tcp dport {agent_port} tcp flags & (fin|syn|rst|ack) == syn accept
  counter
 }}
 chain forwarded {{
  type filter hook forward priority filter; policy drop;
 }}
}}
"""

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
  counter
 }}
}}
table inet space_slot {{
 chain pre_dnat {{
  type nat hook prerouting priority dstnat;
  # the agent's public port and no other: what is not translated stops at this namespace
  iifname "up0" ip saddr {gateway} ip daddr {slot} tcp dport {agent_port} dnat ip to {guest}
 }}
 chain post_snat {{
  type nat hook postrouting priority srcnat;
  oifname "tap0" snat ip to {tap}
 }}
 chain forwarded {{
  type filter hook forward priority filter; policy drop;
  ct state established accept
  iifname "up0" oifname "tap0" ct state new ct status dnat tcp flags & (fin|syn|rst|ack) == syn accept
  # refused aloud, so that a guest's program fails at once instead of waiting
  iifname "tap0" meta l4proto tcp counter reject with tcp reset
  iifname "tap0" counter reject
  counter
 }}
 chain incoming {{
  type filter hook input priority filter; policy drop;
  ct state established accept
  iifname "tap0" meta l4proto tcp counter reject with tcp reset
  iifname "tap0" counter reject
  counter
 }}
}}
"""


def gateway_ruleset(ingress_uid: int, agent_port: int) -> str:
    """Return the rules of the gateway namespace. Loading them again keeps the elements of the set of slots.

    Nothing that a guest sends opens a connection here; the egress proxy's ways in and out come with that proxy.
    """
    return _GATEWAY.format(ingress_uid=ingress_uid, agent_port=agent_port)


def slot_ruleset(gateway: str, slot: str, agent_port: int) -> str:
    """Return the rules of one slot, for a namespace where its `tap0` exists already (a netdev chain names it)."""
    return _SLOT.format(gateway=gateway, slot=slot, agent_port=agent_port, guest=GUEST, tap=TAP)


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
    # adding first makes the deletion succeed in every case, in the same transaction
    await load(netns, _element("add", link, address) + _element("delete", link, address))
