"""E2B's network configurations as policies of ours: what they let out, and what is refused with why."""

import json
import re
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.e2b.models import Network, NetworkUpdate
from space.e2b.network import (
    ALL_TRAFFIC,
    check_https_ports,
    checked_mask,
    egress_policy,
    https_ports,
    proxy_password,
    said,
    said_anew,
)
from space.model.errors import InvalidArgument
from space.model.policy import Policy, Protocol, Request, decide, matching
from space.model.policy_addresses import EVERYWHERE, holds
from space.model.policy_document import parse
from space.model.policy_reach import may_dial, may_resolve
from space.model.policy_upstream import OWN_PASSWORD, ProxyTls
from space.wire.gateway import AGENT_INTERNAL_PORT, AGENT_ORDERS_PORT, AGENT_PORT

TOKEN = {"api.test": [{"transform": {"headers": {"X-Team": "blue", "Authorization": "Bearer ${e2b.secrets.my-key}"}}}]}
PLAIN = {"api.test": [{"transform": {"headers": {"X-Team": "blue"}}}]}


def policy(*, internet: bool | None = None, **network: object) -> Policy:
    """Return the policy of a network configuration."""
    return parse(egress_policy(Network.model_validate(network) if network else None, internet))


def lets(found: Policy, host: str, protocol: Protocol = "https", port: int = 443) -> bool:
    """Tell whether a request leaves: it is allowed, and where it is by name that can be looked up."""
    named = host[-1].isdigit() or may_resolve(found, host)
    return named and decide(found, Request(protocol, host, port)).allowed


def dials(found: Policy, address: str) -> bool:
    """Tell whether a name that leads to an address is dialled."""
    verdict = decide(found, Request("https", "some.test", 443))
    return verdict.allowed and may_dial(found, verdict, IPv4Address(address), "https", 443)


def test_without_a_word_the_public_internet_is_open() -> None:
    found = policy()
    assert lets(found, "any.test")
    assert lets(found, "any.test", "http", 80)
    assert lets(found, "any.test", "tcp", 22)
    assert lets(found, "any.test", "tcp", 8443), "not judged, so that anything can be spoken there"
    assert not lets(found, "any.test", "tcp", 443)
    assert lets(found, "1.1.1.1", "tcp", 443)
    assert not lets(found, "10.0.0.1", "tcp", 443)
    assert not lets(found, "169.254.169.254", "tcp", 80)


@pytest.mark.parametrize("shut", [{"internet": False}, {"denyOut": [ALL_TRAFFIC]}])
def test_shut_off(shut: dict[str, object]) -> None:
    found = policy(**shut)  # type: ignore[arg-type] # fields
    assert not lets(found, "any.test")
    assert not lets(found, "1.1.1.1", "tcp", 443)


def test_addresses_that_are_denied() -> None:
    found = policy(denyOut=["8.8.8.8", "9.9.0.0/16", "10.0.0.0/8"], allowOut=["9.9.9.9"])
    assert not lets(found, "8.8.8.8", "tcp", 443)
    assert lets(found, "8.8.4.4", "tcp", 443)
    assert not lets(found, "9.9.1.1", "tcp", 443)
    assert lets(found, "9.9.9.9", "tcp", 443), "what is allowed goes before"
    assert not dials(found, "8.8.8.8"), "nor by a name that leads there"
    assert dials(found, "9.9.9.9")
    assert dials(found, "8.8.4.4")


def test_only_what_is_allowed() -> None:
    found = policy(denyOut=[ALL_TRAFFIC], allowOut=["1.1.1.1", "example.test", "*.wild.test"])
    assert lets(found, "1.1.1.1", "tcp", 22)
    assert not lets(found, "8.8.8.8", "tcp", 443)
    for host in ("example.test", "a.wild.test"):
        assert lets(found, host)
        assert lets(found, host, "http", 80)
        assert not lets(found, host, "tcp", 22)
    for host in ("wild.test", "other.test"):
        assert not lets(found, host)
    assert lets(policy(denyOut=[ALL_TRAFFIC], allowOut=[ALL_TRAFFIC]), "8.8.8.8", "tcp", 443)
    assert lets(policy(internet=False, allowOut=["example.test"]), "example.test")


def test_headers_go_with_requests_that_may_leave() -> None:
    found = policy(rules=PLAIN)
    for protocol, port in (("https", 443), ("http", 80)):
        (binding,) = matching(found, Request(protocol, "api.test", port))  # type: ignore[arg-type] # protocols
        assert binding.slot == "header x-team"
    assert matching(found, Request("https", "other.test", 443)) == ()
    shut = policy(rules=PLAIN, denyOut=[ALL_TRAFFIC])
    assert not lets(shut, "api.test"), "rules let nothing out"
    shut = policy(rules=PLAIN, denyOut=[ALL_TRAFFIC], allowOut=["*.test"])
    assert len(matching(shut, Request("https", "api.test", 443))) == 1
    assert matching(shut, Request("https", "b.test", 443)) == ()


@pytest.mark.parametrize("more", [{}, {"denyOut": [ALL_TRAFFIC], "allowOut": ["api.test", "*.test"]}])
def test_a_host_with_a_secret_is_reached_by_https_alone(more: dict[str, object]) -> None:
    found = policy(rules=TOKEN, **more)  # type: ignore[arg-type] # fields
    bound = matching(found, Request("https", "api.test", 443))
    assert {name for binding in bound for name in binding.secrets} == {"my-key"}
    assert not lets(found, "api.test", "http", 80)
    assert not lets(found, "api.test", "tcp", 8080)
    assert lets(found, "other.test", "http", 80)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"allowOut": ["example.test"]}, "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' "
         "in deny out to block all other traffic."),
        ({"denyOut": ["example.test"]}, "denyOut: example.test is no address"),
        ({"denyOut": ["::/0"]}, "IPv6"),
        ({"allowOut": ["10.1.0.0/16"]}, "private or reserved"),
        ({"allowOut": ["not a name"], "denyOut": [ALL_TRAFFIC]}, "no host name"),
        ({"egressProxy": {"address": "proxy:1080"}}, "egressProxy: 'proxy' is no host name"),
        ({"egressProxy": {"address": "proxy.test"}}, "must be \"host:port\""),
        ({"egressProxy": {"address": "127.0.0.1:1080"}}, "127.0.0.0/8, which no policy may open"),
        ({"egressProxy": {"address": "proxy.test:1080", "username": "me"}}, "username and password"),
        ({"egressProxy": {"address": "proxy.test:1", "tls": {"enabled": True, "caCert": "x"}}}, "no certificate"),
        ({"dnsServers": ["dns.test"]}, "dnsServers: 'dns.test' is no IPv4 address"),
        ({"dnsServers": ["169.254.169.254"]}, "which no policy may open"),
        ({"rules": {f"h{n}.test": [] for n in range(11)}}, "at most 10 hosts"),
        ({"rules": {"api.test": [{}, {}]}}, "at most one transform"),
        ({"rules": {"api.test": [{"transform": {"headers": {"x": "y" * 2049}}}]}}, "2048"),
        ({"rules": {"api.test": [{"transform": {"headers": {f"x{n}": "" for n in range(21)}}}]}}, "at most 20 headers"),
        ({"rules": {"api.test": [{"transform": {"headers": {"x": "${e2b.identity.tokens.a}"}}}]}}, "identity"),
        ({"rules": {"api.test": [{"transform": {"headers": {"host": "x"}}}]}}, "no header that a credential"),
        ({"rules": {"*.test": [{"transform": {"headers": {"x": "${e2b.secrets.A}"}}}]}}, "one exact host"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_why(network: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        policy(**network)  # type: ignore[arg-type] # fields


PROXY = {"address": "proxy.test:1080", "username": "me", "password": "hidden", "tls": {"enabled": True}}


def test_a_proxy_and_name_servers_are_the_policys() -> None:
    found = policy(egressProxy=PROXY, dnsServers=["1.1.1.1", "10.0.0.53"], denyOut=[ALL_TRAFFIC], allowOut=["a.test"])
    assert found.dns_servers == (IPv4Address("1.1.1.1"), IPv4Address("10.0.0.53"))
    proxy = found.upstream_proxy
    assert proxy is not None
    assert (str(proxy), proxy.tls, proxy.secrets) == ("proxy.test:1080", ProxyTls(), (OWN_PASSWORD,))
    assert lets(found, "a.test")
    assert not lets(found, "proxy.test"), "the sandbox itself does not reach it"
    off = policy(egressProxy={"address": "proxy.test:1080", "tls": {"enabled": False}})
    assert off.upstream_proxy is not None
    assert off.upstream_proxy.tls is None


def test_a_proxys_password_is_not_in_what_is_kept_or_shown() -> None:
    network = Network.model_validate({"egressProxy": PROXY | {"tls": {"enabled": True, "caCert": "PEM"}}})
    shown = {"address": "proxy.test:1080", "username": "me", "tls": {"enabled": True}}
    assert said(network, None)["network"] == {"egressProxy": shown}
    update = NetworkUpdate.model_validate({"egressProxy": PROXY})
    assert said_anew({}, update)["network"] == {"egressProxy": shown}
    password = proxy_password(network)
    assert password is not None
    assert password.get_secret_value() == "hidden"
    assert "hidden" not in repr(network) + json.dumps(egress_policy(update, None)) + network.model_dump_json()


_NETWORKS = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(8, 32)).map(
        lambda pair: f"{pair[0] >> 24}.{pair[0] >> 16 & 255}.{pair[0] >> 8 & 255}.{pair[0] & 255}/{pair[1]}"
    ),
    max_size=4,
)


@given(_NETWORKS, st.integers(0, 2**32 - 1))
def test_no_configuration_opens_what_is_never_reached(denied: list[str], number: int) -> None:
    address = IPv4Address(number)
    found = policy(denyOut=denied)
    inside = any(address in parsed for parsed in map(_network, denied))
    assert lets(found, str(address), "tcp", 443) == (holds(EVERYWHERE, address) and not inside)


def _network(text: str) -> IPv4Network:
    return IPv4Network(text, strict=False)


def test_what_was_said_is_read_back() -> None:
    network = Network.model_validate({"allowPublicTraffic": False, "denyOut": [ALL_TRAFFIC], "odd": 1})
    first = said(network, None)
    assert first == {"allowInternetAccess": None, "network": {"allowPublicTraffic": False, "denyOut": [ALL_TRAFFIC]}}
    update = NetworkUpdate.model_validate({"allowOut": ["1.1.1.1"], "allow_internet_access": True})
    assert said_anew(first, update) == {
        "allowInternetAccess": True,
        "network": {"allowPublicTraffic": False, "allowOut": ["1.1.1.1"]},
    }


@pytest.mark.parametrize(
    ("mask", "good"),
    [("localhost", True), ("shop.test:8080", True), ("shop.test:${PORT}", True), ("${PORT}.x.test", True),
     ("a b", False), ("http://x", False), ("x:y", False), ("", False), ("a\r\nb: c", False)],
)  # fmt: skip
def test_a_mask_is_a_host(mask: str, good: bool) -> None:
    network = Network.model_validate({"maskRequestHost": mask})
    if good:
        assert checked_mask(network) == mask
    else:
        with pytest.raises(InvalidArgument, match="mask request host"):
            checked_mask(network)


def test_https_ports_are_servers_in_the_sandbox_and_outlive_an_update() -> None:
    network = Network.model_validate({"httpsPorts": [8443], "allowOut": ["1.1.1.1"]})
    check_https_ports(network)
    update = NetworkUpdate.model_validate({"denyOut": ["8.8.8.8"], "httpsPorts": [1]})
    assert list(https_ports(said_anew(said(network, None), update))) == [8443]
    assert list(https_ports(None)) == []
    for port in (0, 65536, AGENT_PORT, AGENT_ORDERS_PORT, AGENT_INTERNAL_PORT):
        with pytest.raises(InvalidArgument, match="httpsPorts"):
            check_https_ports(Network.model_validate({"httpsPorts": [port]}))
