"""By which way a policy sends what it allows: what may be written, and what is refused."""

from ipaddress import IPv4Address

import pytest
from tests.support.egress_world import make_ca

from space.model.errors import SpaceError
from space.model.policy import secret_names
from space.model.policy_document import parse, parse_ceiling, to_document, without_credentials

CA = make_ca("a proxy's").pem
WHOLE: dict[str, object] = {
    "upstream_proxy": {
        "address": "Proxy.Example.com:1080",
        "username": "team",
        "password": "${secrets.PROXY}",
        "tls": {"server_name": "other.example.com", "ca": CA},
    },
    "dns_servers": ["1.1.1.1", "10.0.0.53"],
}


def test_a_way_is_read_and_written() -> None:
    policy = parse(WHOLE)
    assert str(policy.upstream_proxy) == "proxy.example.com:1080"
    assert policy.dns_servers == (IPv4Address("1.1.1.1"), IPv4Address("10.0.0.53"))
    assert secret_names(policy) == {"PROXY"}
    assert parse(to_document(policy)) == policy
    assert parse({"upstream_proxy": {"address": "10.1.2.3:1080", "tls": True}}).upstream_proxy is not None
    assert parse(without_credentials(WHOLE)) == policy, "a fork's connections go by the same way"


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ({}, "must be a text"),
        ({"address": "proxy.test"}, "host:port"),
        ({"address": "proxy.test:65536"}, "host:port"),
        ({"address": "proxy.test:0"}, "host:port"),
        ({"address": "[::1]:1080"}, "no host name"),
        ({"address": "localhost:1080"}, "no host name"),
        ({"address": "127.1:1080"}, "no host name"),
        ({"address": "127.0.0.1:1080"}, "127.0.0.0/8, which no policy may open"),
        ({"address": "169.254.169.254:80"}, "169.254.0.0/16, which no policy may open"),
        ({"address": "100.64.0.1:1080"}, "which no policy may open"),
        ({"address": "198.18.0.1:1080"}, "which no policy may open"),
        ({"address": "0.0.0.0:1080"}, "which no policy may open"),
        ({"address": "proxy.test:1080", "username": "a"}, "both"),
        ({"address": "proxy.test:1080", "password": "${secrets.A}"}, "both"),
        ({"address": "proxy.test:1080", "username": "a", "password": "plain"}, "must name a secret"),
        ({"address": "proxy.test:1080", "tls": "yes"}, "must be an object"),
        ({"address": "proxy.test:1080", "tls": {"verify": False}}, "unknown key"),
        ({"address": "proxy.test:1080", "tls": {"ca": "x"}}, "no certificate"),
        ({"address": "proxy.test:1080", "tls": {"ca": ""}}, "no certificate"),
        ({"address": "proxy.test:1080", "tls": {"ca": CA * 99}}, "at most"),
        ({"adress": "proxy.test:1080"}, "unknown key"),
    ],
)
def test_proxies_that_cannot_be(proxy: dict[str, object], words: str) -> None:
    with pytest.raises(SpaceError, match=words) as raised:
        parse({"upstream_proxy": proxy})
    assert "upstream_proxy" in str(raised.value)
    assert "plain" not in str(raised.value), "a password is not repeated"


@pytest.mark.parametrize(
    "servers", [[], ["1.1.1.1"] * 11, ["dns.test"], ["::1"], ["127.0.0.53"], ["1.1.1.1:53"], "1.1.1.1"]
)
def test_name_servers_that_cannot_be(servers: object) -> None:
    with pytest.raises(SpaceError, match="dns_servers"):
        parse({"dns_servers": servers})


@pytest.mark.parametrize("key", ["upstream_proxy", "dns_servers"])
def test_a_ceiling_has_no_way_of_its_own(key: str) -> None:
    with pytest.raises(SpaceError, match=key):
        parse_ceiling({key: WHOLE[key]})


def test_a_token_that_the_gateway_asks_for_itself_does_not_go_with_a_proxy() -> None:
    oauth = {"kind": "oauth", "token_url": "https://id.test/t", "client_id": "a", "client_secret": "${secrets.A}"}
    rules: dict[str, object] = {"allow": [{"host": "a.test", "secrets": [oauth]}]}
    assert parse(rules)
    with pytest.raises(SpaceError, match="oauth"):
        parse(rules | WHOLE)
