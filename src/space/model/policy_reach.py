"""What a policy says about names and addresses as such: what may be looked up, relayed unseen, and dialled.

The host's packet rules and the gateway's resolver go by this; each request is still judged by `policy.decide`.
"""

import functools
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network

from space.model.policy import Policy, Protocol, Request, Rule, Verdict, decide, denies_all
from space.model.policy_addresses import EVERYWHERE, holds
from space.model.policy_ports import ALL_PORTS, PortRange, merged, minus


def may_resolve(policy: Policy, name: str) -> bool:
    """Tell whether a guest may get an address for a canonical name: whether any request for it could be allowed."""
    if policy.ceiling is not None and not may_resolve(policy.ceiling, name):
        return False
    for rule in _about(policy, name):
        if rule.action == "allow":
            return True
        if denies_all(rule):
            return False
    return policy.open or policy.ask_timeout_s is not None


def _about(policy: Policy, name: str) -> Iterator[Rule]:
    return (rule for rule in policy.rules if rule.host is not None and rule.host.matches(name))


def tcp_ports(policy: Policy, name: str) -> tuple[PortRange, ...]:
    """Return the ports at which a canonical name is reached by raw TCP; all its others are for https and http."""
    return _allowed_ports(policy, list(_about(policy, name)), functools.partial(tcp_ports, name=name))


def raw_networks(policy: Policy) -> tuple[tuple[IPv4Network, tuple[PortRange, ...]], ...]:
    """Return the networks whose addresses are reached by raw TCP, and at which ports.

    This is what the host lets through to be judged: within it a deny rule can still refuse some.
    """
    allowing = [rule for rule in policy.rules if rule.action == "allow" and rule.host is None]
    return tuple((rule.network, rule.ports_of("tcp")) for rule in allowing if rule.network is not None)


def _allowed_ports(
    policy: Policy, rules: Sequence[Rule], ceiling: "functools.partial[tuple[PortRange, ...]]"
) -> tuple[PortRange, ...]:
    allowed: list[PortRange] = []
    denied: list[PortRange] = []
    for rule in rules:
        ports = rule.ports_of("tcp")
        if rule.action == "allow":
            allowed += minus(ports, denied)
        else:
            denied += ports
    if policy.ceiling is not None:
        under = ceiling(policy.ceiling)
        allowed = minus(allowed, minus((ALL_PORTS,), under))
    return tuple(merged(allowed))


def may_dial(policy: Policy, verdict: Verdict, address: IPv4Address, protocol: Protocol, port: int) -> bool:
    """Tell whether an address that a name resolved to may be dialled for an allowed request, by what policies say.

    That is: it is in the networks that the deciding rules demand, and no deny rule about networks has it. Ranges that
    nobody may reach are not looked at here.
    """
    demanded = [network for network in _networks(policy, verdict) if network is not None]
    judges = [policy] if policy.ceiling is None else [policy, policy.ceiling]
    return all(holds(network, address) for network in demanded) and not any(
        _network_denied(judge, address, protocol, port) for judge in judges
    )


def declared_network(policy: Policy, verdict: Verdict) -> IPv4Network | None:
    """Return the network into which the deciding rules say the name resolves: the only way to a private address.

    Under a ceiling both must say so; then it is what they have in common.
    """
    networks = [None if network == EVERYWHERE else network for network in _networks(policy, verdict)]
    smallest = max((network for network in networks if network is not None), key=_length, default=None)
    shared = smallest is not None and all(network is not None and smallest.subnet_of(network) for network in networks)
    return smallest if shared else None


def _length(network: IPv4Network) -> int:
    return network.prefixlen


def _networks(policy: Policy, verdict: Verdict) -> list[IPv4Network | None]:
    """Return the networks of the rules that decided, None for one that has none: the policy's, and the ceiling's."""
    found = [None if verdict.rule is None else policy.rules[verdict.rule].network]
    if policy.ceiling is not None:
        above = verdict.ceiling_rule
        found.append(None if above is None else policy.ceiling.rules[above].network)
    return found


def _network_denied(policy: Policy, address: IPv4Address, protocol: Protocol, port: int) -> bool:
    return any(
        rule.action == "deny"
        and rule.network is not None
        and holds(rule.network, address)
        and any(port in ports for ports in rule.ports_of(protocol))
        for rule in policy.rules
    )


def proxy_refusal(policy: Policy) -> str | None:
    """Return why what a policy allows may not go through its upstream proxy; None where it may, or where it has none.

    A project's ceiling bounds the way as well: it has to allow raw TCP to the proxy.
    """
    proxy = policy.upstream_proxy
    if proxy is None or policy.ceiling is None:
        return None
    verdict = decide(policy.ceiling, Request("tcp", proxy.host, proxy.port))
    return None if verdict.allowed else f"the project's ceiling lets nothing go to the upstream proxy: {verdict.why}"
