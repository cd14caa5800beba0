"""Refuses policies that contradict themselves: rules that can never decide, and requests with two answers.

What is refused here is wrong for certain; where it would take a search to tell, nothing is refused.
"""

import itertools
from collections.abc import Sequence

from space.model.errors import InvalidPolicy
from space.model.policy import Policy, Protocol, Rule, denies_all
from space.model.policy_bindings import OAuthBinding
from space.model.policy_names import HostPattern
from space.model.policy_ports import PortRange

_JUDGED: tuple[Protocol, ...] = ("https", "http")


def check_conflicts(policy: Policy) -> None:
    """Raise InvalidPolicy, naming the rules."""
    for index, rule in enumerate(policy.rules):
        for earlier in policy.rules[:index]:
            _check_decides(rule, earlier)
    for one, other in itertools.combinations((rule for rule in policy.rules if rule.action == "allow"), 2):
        _check_one_carrier(one, other)
        _check_one_credential(one, other)
    for rule in policy.rules:
        if rule.action == "allow" and len(rule.protocols) > 1:
            _check_own_carrier(rule)
        if any(binding.secrets for binding in rule.bindings):
            _check_bound(policy, rule)
        if policy.upstream_proxy is not None and any(isinstance(one, OAuthBinding) for one in rule.bindings):
            raise InvalidPolicy(
                f"{rule.label}: the gateway itself asks for an oauth token, which would not go through upstream_proxy; "
                "give it the token as a secret."
            )


def _check_decides(rule: Rule, earlier: Rule) -> None:
    """Refuse a rule that an earlier one leaves nothing to, unless it says the same."""
    same = (earlier.action, earlier.limits, earlier.bindings) == (rule.action, rule.limits, rule.bindings)
    if not same and covers(earlier, rule):
        raise InvalidPolicy(f"{rule.label}: can never decide, since {earlier.label} {earlier.verb} all it is about.")


def _check_one_carrier(one: Rule, other: Rule) -> None:
    """Refuse a port of a name that one rule relays unseen and another one ends TLS at."""
    for raw, judged in ((one, other), (other, one)):
        ports = raw.ports_of("tcp")
        clash = ports and _hosts_overlap(raw, judged)
        if clash and any(ports_overlap(ports, judged.ports_of(protocol)) for protocol in _JUDGED):
            raise InvalidPolicy(f"{other.label}: same host and port as {one.label}, one as tcp, one not; choose one.")


def _check_own_carrier(rule: Rule) -> None:
    if any(ports_overlap(rule.ports_of("tcp"), rule.ports_of(protocol)) for protocol in _JUDGED):
        raise InvalidPolicy(f"{rule.label}: the same port as tcp and as https or http; choose one.")


def _check_one_credential(one: Rule, other: Rule) -> None:
    slots = {binding.slot for binding in one.bindings} & {binding.slot for binding in other.bindings}
    if slots and overlap(one, other):
        raise InvalidPolicy(
            f"{other.label}: some requests may fit it and {one.label}, and both have a credential for {min(slots)}."
        )


def _check_bound(policy: Policy, rule: Rule) -> None:
    """Refuse a credential where it could leave, or come back, by another way than the one that is checked."""
    problem: str | None = None
    if rule.protocols != {"https"}:
        problem = "credentials go over https only."
    elif rule.host is None or rule.host.wildcard:
        problem = "a credential is bound to one exact host."
    elif policy.open or any(_allows_every_name(other) for other in policy.rules):
        if not policy.bind_while_open:
            problem = "credentials need a policy that denies by default: no default allow, no host '*', no observe."
        elif policy.open and not _shut(policy.rules, rule.host):
            problem = 'bind_while_open needs a deny rule for the rest of its host: {"action": "deny", "host": ...}.'
    if problem is None and rule.host is not None:
        for index, other in enumerate(policy.rules):
            plain = other.action == "allow" and other.protocols != {"https"} and _hosts_overlap(rule, other)
            if plain and not _shut(policy.rules[:index], rule.host):
                problem = f"its host has a credential, so {other.label} must not allow it over http or tcp."
    if problem is not None:
        raise InvalidPolicy(f"{rule.label}: {problem}")


def _allows_every_name(rule: Rule) -> bool:
    return rule.action == "allow" and rule.host is not None and rule.host.wildcard and not rule.host.suffix


def _shut(rules: Sequence[Rule], host: HostPattern) -> bool:
    """Tell whether one of these rules leaves nothing of a host to those after it."""
    return any(denies_all(rule) and rule.host is not None and rule.host.covers(host) for rule in rules)


def covers(rule: Rule, other: Rule) -> bool:
    """Tell whether `rule` is about every request that `other` is about; False where that is hard to tell."""
    return (
        _covers_target(rule, other)
        and (rule.methods is None or (other.methods is not None and rule.methods >= other.methods))
        and (rule.action == "deny" or rule.websocket or not other.websocket)
        and all(_covers_ports(rule.ports_of(name), other.ports_of(name)) for name in other.protocols)
        and (rule.paths is None or _covers_paths(rule, other))
    )


def _covers_target(rule: Rule, other: Rule) -> bool:
    if rule.host is None and other.host is None:
        return rule.network is not None and other.network is not None and other.network.subnet_of(rule.network)
    if rule.host is None or other.host is None:
        return False
    # A rule about a name decides whatever its network is; that only narrows what is dialled afterwards.
    return rule.host.covers(other.host)


def _covers_ports(ports: tuple[PortRange, ...], others: tuple[PortRange, ...]) -> bool:
    # both are without ranges that touch, so a range is covered by one or not at all
    return all(any(a.first <= b.first and b.last <= a.last for a in ports) for b in others)


def _covers_paths(rule: Rule, other: Rule) -> bool:
    if other.paths is None or rule.paths is None:
        return False
    return all(any(pattern.covers(its) for pattern in rule.paths) for its in other.paths)


def overlap(one: Rule, other: Rule) -> bool:
    """Tell whether some request may be one that both are about."""
    protocols = one.protocols & other.protocols
    return (
        _hosts_overlap(one, other)
        and any(ports_overlap(one.ports_of(name), other.ports_of(name)) for name in protocols)
        and (one.methods is None or other.methods is None or not one.methods.isdisjoint(other.methods))
        and _paths_overlap(one, other)
    )


def ports_overlap(ports: tuple[PortRange, ...], others: tuple[PortRange, ...]) -> bool:
    """Tell whether two lists of ports have one in common."""
    return any(a.first <= b.last and b.first <= a.last for a in ports for b in others)


def _hosts_overlap(one: Rule, other: Rule) -> bool:
    return one.host is not None and other.host is not None and one.host.overlaps(other.host)


def _paths_overlap(one: Rule, other: Rule) -> bool:
    if one.paths is None or other.paths is None:
        return True
    return any(a.overlaps(b) for a, b in itertools.product(one.paths, other.paths))
