"""What a policy decides: order, default, ceiling, and what is never let through."""

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from space.model.errors import InvalidPolicy
from space.model.policy import METHODS, Policy, Protocol, Request, decide, explain
from space.model.policy_document import parse, parse_ceiling, read, to_document
from space.model.policy_ports import PortRange, merged, minus
from space.model.policy_presets import PRESETS
from space.model.policy_reach import declared_network, may_dial, may_resolve, raw_networks, tcp_ports

SHOWN = {"allow": [{"host": "allowed.test", "methods": ["GET"], "paths": ["/public/**"]}]}


def request(
    host: str = "allowed.test",
    method: str = "GET",
    path: str = "/public/x",
    *,
    protocol: Protocol = "https",
    port: int = 443,
    upgrade: str | None = None,
) -> Request:
    return Request(protocol, host, port, method, path, upgrade)


def test_an_empty_policy_denies() -> None:
    policy = parse({})
    assert not decide(policy, request()).allowed
    assert not may_resolve(policy, "allowed.test")


def test_a_rule_is_about_all_its_parts() -> None:
    policy = parse(SHOWN)
    verdict = decide(policy, request())
    assert (verdict.allowed, verdict.rule, verdict.why) == (True, 0, "allow[0] allows it")
    for other in (
        request("denied.test"),
        request("x.allowed.test"),
        request(method="POST"),
        request(path="/secret"),
        request(port=8443),
        request(protocol="http", port=80),
        request(protocol="http"),
        request(protocol="tcp"),
        request(upgrade="websocket"),
    ):
        assert not decide(policy, other).allowed, other


@pytest.mark.parametrize(
    "path", ["/public/../secret", "/public/%2e%2e/x", "/public//x", "/public/..;/x", "/public/%00"]
)
def test_a_path_in_doubt_fits_only_deny_rules(path: str) -> None:
    assert not decide(parse(SHOWN), request(path=path)).allowed
    denying = parse({"default": "allow", "deny": [{"host": "allowed.test", "paths": ["/secret/**"]}]})
    assert not decide(denying, request(path=path)).allowed
    assert decide(denying, request()).allowed
    free = parse({"allow": [{"host": "allowed.test"}]})
    assert decide(free, request(path=path)).allowed, "no rule is about paths, so none is doubtful"


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "get", "GET ", "FOO", ""])
def test_methods_that_never_leave(method: str) -> None:
    assert not decide(parse({"preset": "open"}), request(method=method)).allowed


@pytest.mark.parametrize(
    "host", ["ALLOWED.test", "allowed.test.", "[allowed.test]", "", "203.0.113.9", "a,allowed.test"]
)
def test_spellings_that_are_not_canonical(host: str) -> None:
    assert not decide(parse({"preset": "open"}), request(host)).allowed


def test_upgrades_need_a_rule() -> None:
    policy = parse({"allow": [{"host": "allowed.test", "websocket": True}]})
    assert decide(policy, request(upgrade="websocket")).allowed
    assert not decide(policy, request(upgrade="h2c")).allowed


def test_deny_beats_allow_where_both_are_lists() -> None:
    policy = parse({"allow": [{"host": "*.allowed.test"}], "deny": [{"host": "x.allowed.test"}]})
    assert decide(policy, request("y.allowed.test")).allowed
    verdict = decide(policy, request("x.allowed.test"))
    assert (verdict.allowed, verdict.why) == (False, "deny[0] denies it")
    assert not may_resolve(policy, "x.allowed.test")
    assert may_resolve(policy, "y.allowed.test")


def test_rules_are_in_order() -> None:
    policy = parse(
        {"rules": [{"action": "allow", "host": "a.allowed.test"}, {"action": "deny", "host": "*.allowed.test"}]}
    )
    assert decide(policy, request("a.allowed.test")).allowed
    assert not decide(policy, request("b.allowed.test")).allowed


def test_a_partial_denial_leaves_the_name_resolvable() -> None:
    policy = parse({"allow": [{"host": "allowed.test"}], "deny": [{"host": "allowed.test", "methods": ["DELETE"]}]})
    assert may_resolve(policy, "allowed.test")
    assert not decide(policy, request(method="DELETE")).allowed


def test_the_open_preset_is_names_over_http_only() -> None:
    policy = parse({"preset": "open"})
    assert decide(policy, request("anything.example")).allowed
    assert decide(policy, request("anything.example", protocol="http", port=8080)).allowed
    assert not decide(policy, request("anything.example", protocol="tcp", port=22)).allowed
    assert tcp_ports(policy, "anything.example") == ()


def test_packages_are_read_only() -> None:
    policy = parse({"preset": "packages", "allow": [{"host": "api.example.com"}]})
    assert decide(policy, request("pypi.org", path="/simple/")).allowed
    assert not decide(policy, request("pypi.org", method="POST")).allowed
    assert decide(policy, request("deb.debian.org", protocol="http", port=80)).allowed
    assert decide(policy, request("api.example.com", method="POST")).rule == 0
    assert not decide(policy, request("example.com")).allowed


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid(name: str) -> None:
    parse({"preset": name})
    parse_ceiling({"preset": name})


def test_raw_tcp_by_name_and_by_address() -> None:
    policy = parse(
        {
            "allow": [
                {"host": "git.test", "protocol": "tcp", "ports": [22, "9000-9010"]},
                {"host": "git.test"},
                {"cidr": "203.0.113.0/24", "ports": [5432]},
            ],
            "deny": [
                {"host": "git.test", "protocol": "tcp", "ports": [9005]},
                {"cidr": "203.0.113.9/32"},
            ],
        }
    )
    assert tcp_ports(policy, "git.test") == (PortRange(22, 22), PortRange(9000, 9004), PortRange(9006, 9010))
    assert decide(policy, request("git.test", protocol="tcp", port=22)).allowed
    assert not decide(policy, request("git.test", protocol="tcp", port=9005)).allowed
    assert [(str(network), ports) for network, ports in raw_networks(policy)] == [
        ("203.0.113.0/24", (PortRange(5432, 5432),))
    ]
    assert decide(policy, request("203.0.113.8", protocol="tcp", port=5432)).allowed
    assert not decide(policy, request("203.0.113.9", protocol="tcp", port=5432)).allowed
    assert not decide(policy, request("203.0.113.8", protocol="tcp", port=22)).allowed
    assert not decide(policy, request("203.0.113.8", protocol="https", port=5432)).allowed


def test_the_public_internet_by_address() -> None:
    policy = parse(
        {
            "rules": [
                {"action": "deny", "cidr": "8.8.8.0/24"},
                {"action": "allow", "cidr": "0.0.0.0/0", "ports": ["1-65535"]},
            ]
        }
    )
    assert raw_networks(policy) == ((IPv4Network("0.0.0.0/0"), (PortRange(1, 65535),)),)
    for address, allowed in (
        ("1.1.1.1", True), ("203.0.113.9", True), ("8.8.8.8", False), ("10.0.0.1", False), ("192.168.1.1", False),
        ("169.254.169.254", False), ("127.0.0.1", False), ("100.64.0.1", False), ("198.18.0.1", False),
    ):  # fmt: skip
        verdict = decide(policy, request(address, protocol="tcp", port=5432))
        assert verdict.allowed == allowed, address
        if allowed:
            assert declared_network(policy, verdict) is None, "it opens no private range"


def test_where_a_name_may_resolve_to() -> None:
    policy = parse(
        {
            "allow": [{"host": "db.corp.test", "cidr": "10.1.2.0/24"}, {"host": "web.test"}],
            "deny": [{"cidr": "203.0.113.0/24"}],
        }
    )
    inside = decide(policy, request("db.corp.test"))
    assert str(declared_network(policy, inside)) == "10.1.2.0/24"
    assert may_dial(policy, inside, IPv4Address("10.1.2.3"), "https", 443)
    assert not may_dial(policy, inside, IPv4Address("198.51.100.1"), "https", 443)
    outside = decide(policy, request("web.test"))
    assert may_dial(policy, outside, IPv4Address("198.51.100.1"), "https", 443)
    assert not may_dial(policy, outside, IPv4Address("203.0.113.7"), "https", 443)


def test_the_ceiling_bounds_everything() -> None:
    policy = parse(
        {
            "default": "allow",
            "allow": [{"host": "git.test", "protocol": "tcp", "ports": ["20-30"]}],
            "ceiling": {"allow": [{"host": "*.allowed.test"}, {"host": "git.test", "protocol": "tcp", "ports": [22]}]},
        }
    )
    assert decide(policy, request("a.allowed.test")).allowed
    verdict = decide(policy, request("denied.test"))
    assert (verdict.allowed, verdict.why) == (False, "the project's ceiling: no rule allows it")
    assert not may_resolve(policy, "denied.test")
    assert tcp_ports(policy, "git.test") == (PortRange(22, 22),)


def test_a_private_address_needs_the_ceilings_word_too() -> None:
    inside, outside = IPv4Address("10.1.2.3"), IPv4Address("198.51.100.1")

    def judged(above: dict[str, object], below: dict[str, object]) -> tuple[str, bool, bool]:
        policy = parse({"allow": [{"host": "db.test"} | below], "ceiling": above})
        verdict = decide(policy, request("db.test"))
        assert verdict.allowed
        dials = [may_dial(policy, verdict, address, "https", 443) for address in (inside, outside)]
        return str(declared_network(policy, verdict)), dials[0], dials[1]

    wide: dict[str, object] = {"cidr": "10.0.0.0/8"}
    narrow: dict[str, object] = {"cidr": "10.1.2.0/24"}
    named: dict[str, object] = {"allow": [{"host": "db.test"} | wide]}
    assert judged(named, narrow) == ("10.1.2.0/24", True, False)
    assert judged({"allow": [{"host": "db.test"} | narrow]}, wide) == ("10.1.2.0/24", True, False)
    assert judged(named, {}) == ("None", True, False), "only the ceiling says so: screening refuses what is private"
    assert judged({"allow": [{"host": "db.test"}]}, narrow) == ("None", True, False)
    assert judged({"preset": "open"}, narrow) == ("None", True, False)
    assert judged({"default": "allow", "deny": [wide]}, {}) == ("None", False, True)


def test_observe_lets_through_what_only_the_default_refuses() -> None:
    policy = parse({"observe": True, "deny": [{"host": "denied.test"}]})
    verdict = decide(policy, request("unknown.test"))
    assert (verdict.allowed, verdict.observed) == (True, True)
    assert not decide(policy, request("denied.test")).allowed
    assert may_resolve(policy, "unknown.test")


def test_ask_is_for_what_only_the_default_refuses() -> None:
    policy = parse({"ask": {"timeout_s": 30}, "deny": [{"host": "denied.test"}], "ceiling": {"default": "allow"}})
    verdict = decide(policy, request("unknown.test"))
    assert (verdict.allowed, verdict.ask) == (False, True)
    assert not decide(policy, request("denied.test")).ask
    assert may_resolve(policy, "unknown.test")


def test_explain_tells_every_rule_up_to_the_one_that_decides() -> None:
    policy = parse({"allow": [{"host": "a.test"}, {"host": "b.test", "methods": ["GET"]}, {"host": "c.test"}]})
    verdict, considered = explain(policy, request("b.test"))
    assert verdict == decide(policy, request("b.test"))
    assert [(one.label, one.mismatch) for one in considered] == [("allow[0]", "another host"), ("allow[1]", None)]
    _, all_of_them = explain(policy, request("b.test", method="POST"))
    assert [one.mismatch for one in all_of_them] == ["another host", "another method", "another host"]


hosts = st.sampled_from(["a.test", "b.test", "x.a.test", "y.x.a.test", "203.0.113.5", "10.0.0.5"])
targets = st.one_of(
    st.fixed_dictionaries({"host": st.sampled_from(["a.test", "b.test", "*.test", "*.a.test", "*.x.a.test", "*"])}),
    st.fixed_dictionaries({"cidr": st.sampled_from(["203.0.113.0/24", "203.0.113.5", "10.0.0.0/8"])}),
)
options = st.fixed_dictionaries(
    {},
    optional={
        "protocols": st.lists(st.sampled_from(["https", "http", "tcp"]), min_size=1, max_size=2, unique=True),
        "ports": st.lists(st.sampled_from([22, 80, 443, "1-1024"]), min_size=1, max_size=2, unique=True),
        "methods": st.lists(st.sampled_from(["GET", "POST"]), min_size=1, max_size=2, unique=True),
        "paths": st.lists(st.sampled_from(["/**", "/a/**", "/a/b"]), min_size=1, max_size=2, unique=True),
    },
)
rules = st.builds(
    lambda target, more, action: target | more | {"action": action},
    targets,
    options,
    st.sampled_from(["allow", "deny"]),
)
documents = st.builds(
    lambda default, listed, observe: {"default": default, "rules": listed, "observe": observe},
    st.sampled_from(["allow", "deny"]),
    st.lists(rules, max_size=4),
    st.booleans(),
)
requests = st.builds(
    Request,
    st.sampled_from(["https", "http", "tcp"]),
    hosts,
    st.sampled_from([22, 80, 443, 8080]),
    st.sampled_from([*sorted(METHODS)[:4], "GET", "POST", "TRACE"]),
    st.sampled_from(["/", "/a/b", "/a/b/c", "/a/../b", "/c"]),
    st.sampled_from([None, "websocket"]),
)


def _policy_or_skip(document: dict[str, object]) -> Policy:
    try:
        return parse(document)
    except InvalidPolicy:
        reject()


@given(documents, requests)
def test_writing_and_reading_changes_no_verdict(document: dict[str, object], asked: Request) -> None:
    policy = _policy_or_skip(document)
    again = parse(to_document(policy))
    assert again == policy == read(document)
    assert decide(again, asked).allowed == decide(policy, asked).allowed


@given(documents, documents, requests)
def test_a_ceiling_only_takes_away(document: dict[str, object], over: dict[str, object], asked: Request) -> None:
    policy, ceiling = _policy_or_skip(document), _policy_or_skip(over | {"observe": False})
    both = parse(document | {"ceiling": to_document(ceiling)})
    assert decide(both, asked).allowed == (decide(policy, asked).allowed and decide(ceiling, asked).allowed)


@given(documents, requests)
def test_what_is_allowed_can_be_resolved_and_routed(document: dict[str, object], asked: Request) -> None:
    policy = _policy_or_skip(document)
    if not decide(policy, asked).allowed:
        return
    by_address = asked.host[0].isdigit()
    if by_address:
        assert any(IPv4Address(asked.host) in network for network, _ in raw_networks(policy))
    else:
        assert may_resolve(policy, asked.host)
        raw = any(asked.port in ports for ports in tcp_ports(policy, asked.host))
        assert raw == (asked.protocol == "tcp") or policy.open


@given(documents, requests)
def test_the_first_rule_that_matches_decides(document: dict[str, object], asked: Request) -> None:
    policy = _policy_or_skip(document)
    verdict, considered = explain(policy, asked)
    if verdict.rule is not None:
        assert considered[-1].mismatch is None
        assert all(one.mismatch is not None for one in considered[:-1])
        assert verdict.allowed == (policy.rules[verdict.rule].action == "allow")


ranges = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 6)).map(lambda p: PortRange(p[0], p[0] + p[1])), max_size=5
)


@given(ranges, ranges)
def test_port_arithmetic(one: list[PortRange], other: list[PortRange]) -> None:
    def ports(found: list[PortRange]) -> set[int]:
        return {port for part in found for port in range(part.first, part.last + 1)}

    assert ports(merged(one)) == ports(one)
    assert ports(minus(one, other)) == ports(one) - ports(other)
