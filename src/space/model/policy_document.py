"""Policies as JSON documents: strict reading, and writing.

    {"default": "deny", "allow": [RULE...], "deny": [RULE...]}      deny rules come first
    {"default": "deny", "rules": [{"action": "allow", ...RULE}...]} in this order
    {"preset": "packages", "allow": [...]}                          own rules, then the preset's
    further keys: "observe": true, "ask": true or {"timeout_s": 60}, "bind_while_open": true, "upstream_proxy": {...},
        "dns_servers": [...] (policy_upstream.py)

A RULE has `host` or `cidr` or both, and may have `protocol` or `protocols`, `ports`, `methods`, `paths`, `websocket`,
`headers`, `secrets`, `limits`. What is not understood is refused, and the error says where it stands.
"""

import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network
from typing import Final, get_args

from space.model import policy_addresses, policy_bindings_document
from space.model.errors import InvalidPolicy
from space.model.policy import METHODS, Action, Limits, Policy, Protocol, Rule
from space.model.policy_conflicts import check_conflicts
from space.model.policy_names import HostPattern, host_pattern
from space.model.policy_paths import PathPattern, path_pattern
from space.model.policy_ports import ALL_PORTS, PortRange, merged
from space.model.policy_presets import PRESETS
from space.model.policy_reading import choice, field, flag, known, mapping, sequence, shown, some, text, whole_number
from space.model.policy_upstream import proxy_document, read_dns_servers, read_proxy

MAX_RULES = 256
MAX_PATHS = 512
"""Path patterns of all rules together: finding contradictions looks at every pair."""
MAX_PORTS = 64
"""Ports and ranges of one rule."""

MAX_ASK_S, DEFAULT_ASK_S = 300, 60

_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
PROTOCOLS: Final = ("https", "http", "tcp")
_POLICY_KEYS = (
    "default", "preset", "allow", "deny", "rules", "observe", "ask", "ceiling", "bind_while_open", "upstream_proxy",
    "dns_servers",
)  # fmt: skip
_RULE_KEYS = (
    "host", "cidr", "protocol", "protocols", "ports", "methods", "paths", "websocket", "headers", "secrets", "limits",
)  # fmt: skip
_ALLOW_ONLY = ("websocket", "headers", "secrets", "limits")


def parse(document: Mapping[str, object]) -> Policy:
    """Read a policy; raises InvalidPolicy, whose text begins with the rule or key that is wrong.

    The largest ones take a second: every pair of rules is compared.
    """
    policy = read(document)
    check_conflicts(policy)
    if policy.ceiling is not None:
        check_conflicts(policy.ceiling)
        _check_bound_only(policy.ceiling)
    return policy


def read(document: Mapping[str, object]) -> Policy:
    """Read a policy that `parse` has accepted before, quickly: whether its rules contradict each other is not asked."""
    known(document, _POLICY_KEYS, "the policy")
    preset = _preset(document)
    rules = [*_rules(document), *preset.rules]
    if len(rules) > MAX_RULES:
        raise InvalidPolicy(f"The policy has {len(rules)} rules; at most {MAX_RULES}.")
    patterns = sum(len(rule.paths or ()) for rule in rules)
    if patterns > MAX_PATHS:
        raise InvalidPolicy(f"The policy has {patterns} path patterns; at most {MAX_PATHS}.")
    default = choice(document.get("default", preset.default), ("deny", "allow"), "default")
    ceiling = document.get("ceiling")
    return Policy(
        default="allow" if default == "allow" else "deny",
        rules=tuple(rules),
        observe=flag(document.get("observe", False), "observe"),
        ask_timeout_s=_ask(document.get("ask", False)),
        ceiling=None if ceiling is None else read(mapping(ceiling, "ceiling")),
        bind_while_open=flag(document.get("bind_while_open", False), "bind_while_open"),
        upstream_proxy=field(document, "upstream_proxy", "the policy", read_proxy),
        dns_servers=field(document, "dns_servers", "the policy", read_dns_servers) or (),
    )


def parse_ceiling(document: Mapping[str, object]) -> Policy:
    """Read a project's ceiling: a policy that only bounds others, and so binds, asks and observes nothing."""
    policy = parse(document)
    _check_bound_only(policy)
    return policy


def _check_bound_only(policy: Policy) -> None:
    for name, there in (
        ("observe", policy.observe),
        ("ask", policy.ask_timeout_s is not None),
        ("ceiling", policy.ceiling is not None),
        ("secrets", any(rule.bindings for rule in policy.rules)),
        ("limits", any(rule.limits != Limits() for rule in policy.rules)),
        ("upstream_proxy", policy.upstream_proxy is not None),
        ("dns_servers", bool(policy.dns_servers)),
    ):
        if there:
            raise InvalidPolicy(f"{name}: a ceiling only says what may be allowed at most, and cannot have this.")


def _preset(document: Mapping[str, object]) -> Policy:
    name = document.get("preset")
    if name is None:
        return Policy()
    found = PRESETS[choice(name, tuple(PRESETS), "preset")]
    return Policy(default=read(found).default, rules=tuple(_rules(found, f"preset {name}: ")))


def _rules(document: Mapping[str, object], prefix: str = "") -> Iterator[Rule]:
    if "rules" in document and ("allow" in document or "deny" in document):
        raise InvalidPolicy('rules: either "rules" in order, or "allow" and "deny"; not both.')
    for index, entry in enumerate(sequence(document.get("rules", []), "rules")):
        where = f"{prefix}rules[{index}]"
        rule = mapping(entry, where)
        if "action" not in rule:
            raise InvalidPolicy(f'{where}: needs an "action": "allow" or "deny".')
        action: Action = "allow" if choice(rule["action"], ("allow", "deny"), f"{where}.action") == "allow" else "deny"
        yield _rule({key: value for key, value in rule.items() if key != "action"}, action, where)
    for action in ("deny", "allow"):
        for index, entry in enumerate(sequence(document.get(action, []), action)):
            where = f"{prefix}{action}[{index}]"
            yield _rule(mapping(entry, where), action, where)


def _rule(document: Mapping[str, object], action: Action, where: str) -> Rule:
    known(document, _RULE_KEYS, where)
    host = field(document, "host", where, lambda value: host_pattern(text(value)))
    network = field(document, "cidr", where, lambda value: policy_addresses.network(text(value)))
    methods = field(document, "methods", where, _methods)
    paths = field(document, "paths", where, _paths)
    ports = field(document, "ports", where, _ports)
    protocols = _protocols(document, action, judged=methods is not None or paths is not None, by_address=host is None)
    _check_shape(document, action, host, network, protocols, where)
    return Rule(
        action=action,
        host=host,
        network=network,
        protocols=protocols,
        ports=ports,
        methods=methods,
        paths=paths,
        websocket=flag(document.get("websocket", False), f"{where}.websocket"),
        bindings=policy_bindings_document.parse(document, where),
        limits=field(document, "limits", where, _limits) or Limits(),
        label=where,
    )


def _check_shape(
    document: Mapping[str, object],
    action: Action,
    host: HostPattern | None,
    network: IPv4Network | None,
    protocols: frozenset[Protocol],
    where: str,
) -> None:
    """Refuse a rule whose parts do not go together."""
    problem: str | None = None
    given = [key for key in _ALLOW_ONLY if key in document]
    if host is None and network is None:
        problem = 'needs a "host" or a "cidr".'
    elif action == "deny" and given:
        problem = f"{given[0]} is for allow rules."
    elif action == "deny" and host is not None and network is not None:
        problem = "a deny rule is about a host or a cidr, not both."
    elif "tcp" in protocols and ("methods" in document or "paths" in document or "websocket" in document):
        problem = "raw TCP has no methods, paths or websockets to judge."
    elif action == "allow" and "tcp" in protocols and "ports" not in document:
        problem = 'raw TCP needs "ports".'
    elif action == "allow" and host is None and protocols != {"tcp"}:
        problem = "an address has no name that could be verified: only protocol tcp goes with a cidr alone."
    elif "tcp" in protocols and "limits" in document and len(protocols) > 1:
        problem = "limits count requests or raw connections; make two rules."
    if problem is not None:
        raise InvalidPolicy(f"{where}: {problem}")


def _protocols(
    document: Mapping[str, object], action: Action, *, judged: bool, by_address: bool
) -> frozenset[Protocol]:
    """Return the protocols of a rule. Without any: an allow rule is about https, a deny rule about all it can be."""
    if "protocol" in document and "protocols" in document:
        raise InvalidPolicy("protocols: not together with protocol.")
    given = document.get("protocols", [document["protocol"]] if "protocol" in document else None)
    if given is None:
        if action == "deny":
            return frozenset(("https", "http") if judged else ("https", "http", "tcp"))
        return frozenset(("tcp",) if by_address else ("https",))
    names = [choice(name, PROTOCOLS, "protocol") for name in sequence(given, "protocols")]
    found: frozenset[Protocol] = frozenset(protocol for protocol in get_args(Protocol) if protocol in names)
    if not found:
        raise InvalidPolicy("protocols: an empty list allows nothing; leave it out for the default.")
    return found


def _methods(value: object) -> frozenset[str]:
    names = [choice(name, sorted(METHODS), "method") for name in sequence(value, "methods")]
    return frozenset(some(names))


def _paths(value: object) -> tuple[PathPattern, ...]:
    patterns = some(sequence(value, "paths"))
    return tuple(path_pattern(text(pattern)) for pattern in patterns)


def _ports(value: object) -> tuple[PortRange, ...]:
    entries = value if isinstance(value, list) else [value]
    if len(entries) > MAX_PORTS:
        raise InvalidPolicy(f"at most {MAX_PORTS} ports and ranges; got {len(entries)}.")
    return tuple(merged([_port_range(entry) for entry in some(entries)]))


def _port_range(value: object) -> PortRange:
    """Read `443` or `"8000-8100"`."""
    found = _PORTS.fullmatch(str(value)) if isinstance(value, int | str) else None
    if found is not None:
        ports = PortRange(int(found[1]), int(found[2] or found[1]))
        if ALL_PORTS.first <= ports.first <= ports.last <= ALL_PORTS.last:
            return ports
    raise InvalidPolicy(f'{shown(value)} is no port, 1 to 65535, and no range like "8000-8100".')


def _limits(value: object) -> Limits:
    document = mapping(value, "limits")
    names = tuple(Limits.__dataclass_fields__)
    known(document, names, "limits")
    return Limits(**{name: whole_number(number, name, 1, 2**53) for name, number in document.items()})


def _ask(value: object) -> int | None:
    if isinstance(value, bool):
        return DEFAULT_ASK_S if value else None
    document = mapping(value, "ask")
    known(document, ("timeout_s",), "ask")
    return whole_number(document.get("timeout_s", DEFAULT_ASK_S), "ask.timeout_s", 1, MAX_ASK_S)


def to_document(policy: Policy) -> dict[str, object]:
    """Write a policy in its plainest form, `rules` in order; `parse` reads the same policy from it."""
    document: dict[str, object] = {"default": policy.default, "rules": [_rule_document(rule) for rule in policy.rules]}
    if policy.observe:
        document["observe"] = True
    if policy.ask_timeout_s is not None:
        document["ask"] = {"timeout_s": policy.ask_timeout_s}
    if policy.bind_while_open:
        document["bind_while_open"] = True
    if policy.upstream_proxy is not None:
        document["upstream_proxy"] = proxy_document(policy.upstream_proxy)
    if policy.dns_servers:
        document["dns_servers"] = [str(server) for server in policy.dns_servers]
    if policy.ceiling is not None:
        document["ceiling"] = to_document(policy.ceiling)
    return document


def without_credentials(document: Mapping[str, object]) -> dict[str, object]:
    """Return a valid document without its `headers` and `secrets`; what it allows stays the same, and by which way.

    So an upstream proxy keeps its password: without it nothing would leave.
    """

    def plain(rules: object) -> list[dict[str, object]]:
        listed = (mapping(rule, "rule") for rule in sequence(rules, "rules"))
        return [{key: value for key, value in rule.items() if key not in ("headers", "secrets")} for rule in listed]

    lists = ("allow", "deny", "rules")
    return {key: plain(value) if key in lists else value for key, value in document.items()}


def _rule_document(rule: Rule) -> dict[str, object]:
    limits = {name: getattr(rule.limits, name) for name in Limits.__dataclass_fields__}
    written: dict[str, object] = {
        "host": rule.host and str(rule.host),
        "cidr": rule.network and str(rule.network),
        "protocols": [protocol for protocol in PROTOCOLS if protocol in rule.protocols],
        "ports": rule.ports and [str(ports) for ports in rule.ports],
        "methods": rule.methods and sorted(rule.methods),
        "paths": rule.paths and [pattern.text for pattern in rule.paths],
        "websocket": rule.websocket or None,
        "secrets": [policy_bindings_document.to_document(binding) for binding in rule.bindings] or None,
        "limits": {name: limit for name, limit in limits.items() if limit is not None} or None,
    }
    return {"action": rule.action} | {key: value for key, value in written.items() if value is not None}
