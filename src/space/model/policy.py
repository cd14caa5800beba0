"""What may leave a sandbox: rules in order, the first that matches decides, else the default.

Nothing here resolves a name or knows an address of a name: a rule is about the name that a request was for, and the
gateway makes sure that this, the TLS name and the `Host` are one. How a policy is written: policy_document.py.

A rule is about a name (and may say into which network the name must resolve), or about a network, whose addresses are
then reached by address, as raw TCP, without any name. Everything that is not plain is refused: a spelling that is not
canonical, a method that is not in METHODS, an upgrade other than to WebSocket.
"""

import dataclasses
from ipaddress import IPv4Address, IPv4Network
from typing import Literal

from space.model.policy_addresses import holds, is_address
from space.model.policy_bindings import Binding
from space.model.policy_names import HostPattern, InvalidName, canonical_host
from space.model.policy_paths import AmbiguousPath, PathPattern, canonical_path
from space.model.policy_ports import ALL_PORTS, PortRange
from space.model.policy_upstream import UpstreamProxy

Protocol = Literal["https", "http", "tcp"]
"""`https`: TLS ended at the gateway and each request judged; `http`: likewise without TLS; `tcp`: bytes as they are."""

Action = Literal["allow", "deny"]

METHODS = frozenset(
    {
        *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"),
        *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH"),  # WebDAV
    }
)
"""TRACE shows a request's credentials, and CONNECT opens a tunnel."""

WEBSOCKET = "websocket"


DEFAULT_PORTS: dict[Protocol, tuple[PortRange, ...]] = {
    "https": (PortRange(443, 443),),
    "http": (PortRange(80, 80),),
    "tcp": (),
}
"""What an allow rule without ports means."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one sandbox under one rule; None is no limit.

    The bytes are totals since the gateway last learned a policy of this generation. What is over is refused.
    """

    requests_per_minute: int | None = None
    upload_bytes: int | None = None
    download_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `label` is where it stands in its document, as in `allow[2]`.

    With `host` and `network` the name must resolve into the network; EVERYWHERE is the public internet. None for
    `methods` and `paths` means any.
    """

    action: Action
    host: HostPattern | None
    network: IPv4Network | None
    protocols: frozenset[Protocol]
    ports: tuple[PortRange, ...] | None = None
    methods: frozenset[str] | None = None
    paths: tuple[PathPattern, ...] | None = None
    websocket: bool = False
    bindings: tuple[Binding, ...] = ()
    limits: Limits = Limits()
    label: str = dataclasses.field(default="", compare=False)

    @property
    def verb(self) -> str:
        """What it does, for a sentence."""
        return "allows" if self.action == "allow" else "denies"

    def ports_of(self, protocol: Protocol) -> tuple[PortRange, ...]:
        """Return the ports at which the rule is about a protocol."""
        if protocol not in self.protocols:
            return ()
        if self.ports is not None:
            return self.ports
        return DEFAULT_PORTS[protocol] if self.action == "allow" else (ALL_PORTS,)


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """Rules in order, and what holds where none matches.

    `default` "allow" is about `https` and `http` by name at any port; raw TCP always needs a rule. With `observe` such
    requests are let through and recorded, to learn what a workload needs. `ask_timeout_s`: seconds for which one waits
    for a person's answer instead of being refused at once. `ceiling` must allow a request too. `bind_while_open`:
    credentials go with it although names that no rule is about may be reached. What is allowed goes through
    `upstream_proxy`, where there is one, or not at all; names are looked up at `dns_servers`, none being the host's.
    """

    default: Action = "deny"
    rules: tuple[Rule, ...] = ()
    observe: bool = False
    ask_timeout_s: int | None = None
    ceiling: "Policy | None" = None
    bind_while_open: bool = False
    upstream_proxy: UpstreamProxy | None = None
    dns_servers: tuple[IPv4Address, ...] = ()

    @property
    def open(self) -> bool:
        """Whether names that no rule is about may be reached."""
        return self.default == "allow" or self.observe


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One request as the gateway sees it, or one connection where `protocol` is `tcp`.

    `host` is a canonical name, or the address for raw TCP to an address. `path` is the target as it will be sent, with
    its query. `upgrade` is the header of that name, lower case.
    """

    protocol: Protocol
    host: str
    port: int
    method: str = "GET"
    path: str = "/"
    upgrade: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request may leave, by which rule (its index; None: by the default), and why, in words.

    `ask`: refused, but a person may be asked. `observed`: let through only in order to learn. `ceiling_rule`: by which
    rule the ceiling allowed it, likewise.
    """

    allowed: bool
    rule: int | None
    why: str
    ask: bool = False
    observed: bool = False
    ceiling_rule: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Considered:
    """A rule that was looked at; `mismatch` says why it is not about the request, None that it decided."""

    label: str
    action: Action
    mismatch: str | None


def decide(policy: Policy, request: Request) -> Verdict:
    """Judge a request. The ceiling comes first, then the rules in order, then the default."""
    verdict = _unjudgeable(request)
    if verdict is not None:
        return verdict
    if policy.ceiling is None:
        return _judge(policy, request)
    ceiling = decide(policy.ceiling, request)
    if not ceiling.allowed:
        return Verdict(allowed=False, rule=None, why=f"the project's ceiling: {ceiling.why}")
    return dataclasses.replace(_judge(policy, request), ceiling_rule=ceiling.rule)


def _judge(policy: Policy, request: Request) -> Verdict:
    for index, rule in enumerate(policy.rules):
        if _mismatch(rule, request) is None:
            return Verdict(allowed=rule.action == "allow", rule=index, why=f"{rule.label} {rule.verb} it")
    return _by_default(policy, request)


def explain(policy: Policy, request: Request) -> tuple[Verdict, tuple[Considered, ...]]:
    """Judge a request, and return also every rule that was looked at, up to the one that decided."""
    verdict = decide(policy, request)
    last = len(policy.rules) if verdict.rule is None else verdict.rule + 1
    considered = (Considered(rule.label, rule.action, _mismatch(rule, request)) for rule in policy.rules[:last])
    return verdict, tuple(considered)


def matching(policy: Policy, request: Request) -> tuple[Binding, ...]:
    """Return the credentials that go with an allowed request: those of the rule that decided."""
    verdict = decide(policy, request)
    return policy.rules[verdict.rule].bindings if verdict.allowed and verdict.rule is not None else ()


def _unjudgeable(request: Request) -> Verdict | None:
    """Refuse what no rule may be asked about."""
    why: str | None = None
    if request.protocol == "tcp" and is_address(request.host):
        pass
    elif not _is_canonical(request.host):
        why = "the host name is not in canonical form"
    elif request.protocol == "tcp":
        pass
    elif request.method not in METHODS:
        why = "the method is not one that may leave"
    elif request.upgrade not in (None, WEBSOCKET):
        why = "only an upgrade to websocket can be allowed"
    return None if why is None else Verdict(allowed=False, rule=None, why=why)


def _is_canonical(host: str) -> bool:
    try:
        return canonical_host(host) == host
    except InvalidName:
        return False


def _by_default(policy: Policy, request: Request) -> Verdict:
    if request.protocol == "tcp":
        return Verdict(allowed=False, rule=None, why="no rule allows it, and raw TCP needs one")
    if policy.default == "allow":
        return Verdict(allowed=True, rule=None, why="no rule is about it, and the default is allow")
    if policy.observe:
        return Verdict(allowed=True, rule=None, why="no rule allows it; let through to observe", observed=True)
    return Verdict(allowed=False, rule=None, why="no rule allows it", ask=policy.ask_timeout_s is not None)


def _mismatch(rule: Rule, request: Request) -> str | None:
    """Return why a rule is not about a request, None where it is. A path in doubt fits a deny rule only."""
    if not _same_target(rule, request.host):
        return "another host"
    if request.protocol not in rule.protocols:
        return "another protocol"
    if not any(request.port in ports for ports in rule.ports_of(request.protocol)):
        return "another port"
    if request.protocol == "tcp":
        return None
    if rule.methods is not None and request.method not in rule.methods:
        return "another method"
    if request.upgrade is not None and rule.action == "allow" and not rule.websocket:
        return "it does not allow websockets"
    return _path_mismatch(rule, request.path)


def _path_mismatch(rule: Rule, target: str) -> str | None:
    if rule.paths is None:
        return None
    try:
        path = canonical_path(target)
    except AmbiguousPath:
        return None if rule.action == "deny" else "the path can be read in two ways"
    return None if any(pattern.matches(path) for pattern in rule.paths) else "another path"


def _same_target(rule: Rule, host: str) -> bool:
    if rule.host is not None:
        return rule.host.matches(host)
    # A canonical name ends in a label that begins with a letter, so only an address can pass for one.
    return rule.network is not None and host[-1].isdigit() and holds(rule.network, IPv4Address(host))


def denies_all(rule: Rule) -> bool:
    """Tell whether a rule refuses every request for its host."""
    whole = rule.methods is None and rule.paths is None and rule.ports in (None, (ALL_PORTS,))
    return rule.action == "deny" and whole and rule.protocols >= {"https", "http", "tcp"}


def secret_names(policy: Policy) -> frozenset[str]:
    """Return the names of all secrets that a policy binds, those of its upstream proxy among them."""
    proxy = () if policy.upstream_proxy is None else policy.upstream_proxy.secrets
    return frozenset(proxy).union(
        name for rule in policy.rules for binding in rule.bindings for name in binding.secrets
    )
