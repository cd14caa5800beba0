"""Controls that are packet rules, routes and kernel parameters (EGRESS C4, H1, M5, M6, M10)."""

from tests.support.mutation import change, code
from tests.support.switches import Routes, Rules, Sysctls

from space.wire.gateway import EGRESS_HTTP_PORT

_NFT = "net/nft.py"
_SLOT, _OUT = "host/test_net_slot.py::", "host/test_net_egress.py::"
_ALL_TO_PROXY = f'insert rule inet space_gw redirects iifname "sl*" meta l4proto tcp redirect to :{EGRESS_HTTP_PORT}\n'
_FORWARDED = "add chain inet space_gw forwarded { policy accept; }\n"
_STRAY = 'add rule inet space_slot forwarded iifname "up0" oifname "tap0" ct state new ct status dnat accept\n'
_LOOSE = "net.netfilter.nf_conntrack_tcp_loose"

PACKETS = (
    # at the tap and in the slot
    change("sources are checked at the tap", Rules(("ip saddr != 169.254.0.21",), slot=True), by="L-01"),
    change("fragments end at the tap", Rules(("ip frag-off",), slot=True), by="L-10"),
    change(
        "other protocols end at the tap",
        Rules(more="insert rule netdev space_tap ingress accept\n", slot=True),
        by="L-07",
    ),
    change("SYNs are limited at the tap", Rules(("== syn limit rate over",), slot=True), by="EGRESS-H1-syn"),
    change(
        "questions to name servers are limited at the tap",
        Rules(("udp dport 53 limit rate over",), slot=True),
        by="D-18",
    ),
    change("connections are limited in the slot", Rules(("ct count over",), slot=True), by="EGRESS-H1-connections"),
    change("segments of no connection are reset", Rules(("reject with tcp reset",), slot=True), by="EGRESS-M10"),
    change(
        "a segment of another life reaches no guest: connections begin with a SYN, and are tracked strictly",
        Sysctls(((_LOOSE, 1),), slot=True),
        Rules(more=_STRAY, slot=True),
        by="EGRESS-C4-stray",
    ),
    change(
        "a slot passes on to its guest what the gateway namespace sends, and keeps the agent's internal ports",
        code(_NFT, "ip daddr {slot} tcp dport != {{ {workers_ports} }} dnat", "ip daddr {slot} dnat"),
        by=_SLOT + "test_a_slot_keeps_the_internal_ports_to_itself",
    ),
    change(
        "IPv6 has no stack in a slot",
        code("net/slot.py", '"net.ipv6.conf.all.disable_ipv6": 1', '"net.ipv6.conf.all.disable_ipv6": 0'),
        code("net/slot.py", '"net.ipv6.conf.default.disable_ipv6": 1', '"net.ipv6.conf.default.disable_ipv6": 0'),
        by=_SLOT + "test_ipv6_and_fragments_do_not_enter_a_slot",
    ),
    # in the gateway namespace
    change("only synthetic addresses reach the proxy", Rules(more=_ALL_TO_PROXY), by="A-01 D-08"),
    change("who wastes connections is muted", Rules(('comment "muted"',)), by="EGRESS-C1"),
    change("what is not redirected is refused aloud", Rules(('comment "refused"',)), by="D-08 A-01"),
    change("every resolver is ours", Rules(("th dport 53 redirect",)), by="D-07", deaf=True),
    change(
        "a link carries the packets of its slot",
        code(_NFT, '  counter drop comment "forged"\n', '  counter accept comment "unnoticed"\n'),
        by=_SLOT + "test_a_source_of_another_slot_is_dropped_at_the_gateway",
    ),
    change(
        "nothing is forwarded: not by the kernel, not by the rules, and what is for nobody ends before",
        Sysctls((("net.ipv4.ip_forward", 1),)),
        Rules(('comment "refused"', 'iifname "sl*" counter drop'), _FORWARDED),
        by="A-01 D-08",
    ),
    change(
        "what may leave the gateway namespace",
        Rules(more="insert rule inet space_gw outgoing accept\n"),
        by="D-12 EGRESS-C4",
    ),
    change("the host's own addresses are no target", Rules(("ip daddr @own counter drop",)), by="D-12"),
    change(
        "special ranges are no target",
        code(_NFT, '  oifname "{uplink}" ip daddr @never counter drop\n', ""),
        by=_OUT + "test_c4_the_output_chain_knows_each_process_by_its_user",
    ),
    change(
        "addresses that point inside are neither chosen nor let out",
        Rules(("ip daddr @never counter drop", "ip daddr @own counter drop")),
        code("gateway/resolve.py", "return not any(address in network for network in self._refused)", "return True"),
        by="D-12",
    ),
    change(
        "packets for slots and names that are gone have no way out: neither a route nor a rule",
        Routes(("unreachable 100.64.0.0/10", "unreachable 198.18.0.0/15")),
        Rules(more="insert rule inet space_gw outgoing accept\n"),
        by="EGRESS-C4",
    ),
    change(
        "only the gateway asks name servers",
        code(_NFT, "meta skuid {gateway_uid} ip daddr @resolvers", "ip daddr @resolvers"),
        by=_OUT + "test_only_the_gateway_asks_the_resolvers",
    ),
    change(
        "only the ingress proxy connects to guests",
        code(
            _NFT,
            "meta skuid {ingress_uid} tcp dport != {{ {workers_ports} }} {syn}",
            "tcp dport != {{ {workers_ports} }} {syn}",
        ),
        by=_SLOT + "test_only_the_ingress_uid_reaches_a_guest_and_never_the_agents_internal_ports",
    ),
    change(
        "the agent's internal ports are no target: neither out of the gateway namespace nor into the slot",
        code(
            _NFT, "meta skuid {ingress_uid} tcp dport != {{ {workers_ports} }} {syn}", "meta skuid {ingress_uid} {syn}"
        ),
        code(_NFT, "ip daddr {slot} tcp dport != {{ {workers_ports} }} dnat", "ip daddr {slot} dnat"),
        by=_SLOT + "test_only_the_ingress_uid_reaches_a_guest_and_never_the_agents_internal_ports",
    ),
    change(
        "a guest has so many visitors",
        code(
            _NFT,
            "add @visits {{ ip daddr ct count over {incoming} }}",
            "add @visits {{ ip daddr ct count over 60000 }}",
        ),
        by=_SLOT + "test_a_guest_has_so_many_visitors_and_its_owner_a_way_in",
    ),
    change(
        "calls of a guest's agent are counted apart from visits",
        code(_NFT, "ct state new tcp dport != {agent_port} add @visits", "ct state new add @visits"),
        by=_SLOT + "test_a_guest_has_so_many_visitors_and_its_owner_a_way_in",
    ),
    change(
        "raw targets are a slot's own, and each connection is judged",
        code(_NFT, '  iifname "sl*" ip saddr . ip daddr . tcp dport @raw', '  iifname "sl*" tcp dport 2222'),
        code("gateway/relay.py", "            if not verdict.allowed:", "            if False:"),
        code(
            "gateway/relay.py",
            "not still_allowed(guest.policy, flight):\n                raise",
            "False:\n                raise",
        ),
        by="host/test_egress_relay.py::test_a_listed_network_is_reached_by_address",
    ),
    change(
        "nothing that comes over the uplink ends at the host",
        code("net/uplink.py", 'iifname "{link}" fib daddr type local counter drop', 'iifname "{link}" accept'),
        by=_OUT + "test_nothing_that_comes_over_the_uplink_ends_at_the_host",
    ),
    change(
        "nothing comes in by the uplink: the far end lets answers pass, and the namespace takes none else",
        code("net/uplink.py", '  oifname "{link}" counter drop\n', ""),
        code(_NFT, "hook input priority filter; policy drop;", "hook input priority filter; policy accept;"),
        by=_OUT + "test_what_leaves_has_the_hosts_address_and_nothing_comes_in",
    ),
    change(
        "only the gateway and the egress proxy leave by the uplink",
        code(_NFT, 'oifname "{uplink}" meta skuid {{ {gateway_uid}, {egress_uid} }} {syn}', 'oifname "{uplink}" {syn}'),
        by=_OUT + "test_c4_the_output_chain_knows_each_process_by_its_user",
    ),
)
