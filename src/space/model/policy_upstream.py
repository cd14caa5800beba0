"""Where a policy sends what it allows: the SOCKS5 proxy that all connections go through, and the name servers asked.

    "upstream_proxy": {"address": "proxy.example.com:1080", "username": "team", "password": "${secrets.PROXY}",
                       "tls": true}
    "dns_servers": ["192.0.2.53"]

`tls` may also be {"server_name": NAME, "ca": PEM}. Both are reached by the gateway itself, so they are bounded here as
what policies name is: an address of a private network has to be written as such, and loopback, link-local and metadata
addresses are never reached. What is allowed is up to the rules; these only say by which way it goes.
"""

import dataclasses
import re
import ssl
from ipaddress import IPv4Address, IPv4Network

from space.model import policy_addresses
from space.model.errors import InvalidPolicy
from space.model.policy_bindings import Template, template
from space.model.policy_names import canonical_host
from space.model.policy_reading import known, mapping, sequence, shown, text

MAX_DNS_SERVERS = 10
MAX_CA = 8192
"""Characters of the certificates that a proxy is verified with."""
MAX_CREDENTIAL = 255
"""Bytes of a username or password (RFC 1929)."""

OWN_PASSWORD = "_upstream_proxy_password"  # noqa: S105 - a name
"""The secret's name by which a policy means the password that came with it, which is its sandbox's own."""

_ADDRESS = re.compile(r"(.+):([1-9][0-9]{0,4})")
_KEYS = ("address", "username", "password", "tls")
_TLS_KEYS = ("server_name", "ca")


@dataclasses.dataclass(frozen=True, slots=True)
class ProxyTls:
    """TLS to the proxy. `server_name` None is the proxy's own host; `ca` (PEM) None trusts what the host trusts."""

    server_name: str | None = None
    ca: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class UpstreamProxy:
    """A SOCKS5 server (RFC 1928). `host` is a canonical name or an IPv4 address; no `username`: it asks for none."""

    host: str
    port: int
    username: Template | None = None
    password: Template | None = None
    tls: ProxyTls | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def network(self) -> IPv4Network | None:
        """The address that the policy names, the only way to a private one; None for a name."""
        return IPv4Network(self.host) if policy_addresses.is_address(self.host) else None

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the secrets it needs."""
        return tuple(name for part in (self.username, self.password) if part is not None for name in part.secrets)


def read_proxy(value: object) -> UpstreamProxy:
    """Read an upstream proxy; raises InvalidPolicy, InvalidName, InvalidArgument."""
    document = mapping(value, "upstream_proxy")
    known(document, _KEYS, "upstream_proxy")
    found = _ADDRESS.fullmatch(text(document.get("address")))
    if found is None or int(found[2]) > 65535:
        raise InvalidPolicy('address: must be "host:port", as in "proxy.example.com:1080"; IPv6 is not reached.')
    username = None if "username" not in document else template(text(document["username"]))
    password = None if "password" not in document else template(text(document["password"]))
    if (username is None) != (password is None):
        raise InvalidPolicy("username and password: both, or none for a proxy that asks for neither (RFC 1929).")
    if password is not None and not password.secrets:
        raise InvalidPolicy("password: must name a secret, as in ${secrets.PROXY_PASSWORD}: a policy can be read.")
    return UpstreamProxy(_host(found[1]), int(found[2]), username, password, _tls(document.get("tls", False)))


def _host(given: str) -> str:
    if policy_addresses.is_address(given):
        policy_addresses.network(given)
        return given
    return canonical_host(given)


def _tls(value: object) -> ProxyTls | None:
    if isinstance(value, bool):
        return ProxyTls() if value else None
    document = mapping(value, "tls")
    known(document, _TLS_KEYS, "tls")
    name = None if "server_name" not in document else _host(text(document["server_name"]))
    return ProxyTls(name, None if "ca" not in document else _ca(document["ca"]))


def _ca(value: object) -> str:
    if not isinstance(value, str) or not value.isascii() or len(value) > MAX_CA:
        raise InvalidPolicy(f"tls.ca: must be certificates as PEM, at most {MAX_CA} characters.")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=value)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidPolicy("tls.ca: holds no certificate that can be read; PEM is expected.") from error
    return value


def proxy_document(proxy: UpstreamProxy) -> dict[str, object]:
    """Write one; `read_proxy` reads the same from it."""
    document: dict[str, object] = {"address": str(proxy)}
    for key, part in (("username", proxy.username), ("password", proxy.password)):
        if part is not None:
            document[key] = part.text
    if proxy.tls is not None:
        parts = (("server_name", proxy.tls.server_name), ("ca", proxy.tls.ca))
        document["tls"] = {key: part for key, part in parts if part is not None} or True
    return document


def read_dns_servers(value: object) -> tuple[IPv4Address, ...]:
    """Read name servers, in the order in which they are asked; raises InvalidPolicy, InvalidArgument."""
    entries = sequence(value, "dns_servers")
    if not 1 <= len(entries) <= MAX_DNS_SERVERS:
        raise InvalidPolicy(f"must be 1 to {MAX_DNS_SERVERS} addresses; leave it out for the host's name servers.")
    return tuple(_server(entry) for entry in entries)


def _server(value: object) -> IPv4Address:
    given = text(value)
    if not policy_addresses.is_address(given):
        raise InvalidPolicy(f"{shown(value)} is no IPv4 address.")
    return policy_addresses.network(given).network_address
