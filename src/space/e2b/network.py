"""E2B's `network` and `allow_internet_access` as a policy of ours, and as they are read back. Pure.

    E2B                                       here
    nothing said                              all of the public internet, by name and by address
    denyOut: addresses                        denied, but for what allowOut has of them
    denyOut: 0.0.0.0/0, or no internet        nothing but what allowOut has
    allowOut: addresses                       reached by address, as raw TCP at any port
    allowOut: names (only with the former)    https at 443, http at 80, with websockets
    rules: header transforms                  headers of the name's rule; alone they let nothing out

What leaves is TCP over IPv4. By name, ports 80 and 443 are http and https, which the gateway judges and can add headers
to; the other ports are raw TCP. A name whose headers hold a secret is reached by https alone: nothing that it answers
passes unseen. `egressProxy` and `dnsServers` are the policy's `upstream_proxy` and `dns_servers`; the proxy's password
is not part of the policy, but the sandbox's own secret.
"""

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network

from pydantic import SecretStr

from space.e2b.models import Egress, EgressProxy, Network, NetworkUpdate, Rule
from space.model.errors import InvalidArgument, SpaceError
from space.model.policy_addresses import NEVER, PRIVATE
from space.model.policy_names import HostPattern, host_pattern
from space.model.policy_ports import ALL_PORTS, PortRange, minus
from space.model.policy_upstream import OWN_PASSWORD, read_dns_servers, read_proxy
from space.wire.gateway import AGENT_PORT, WORKERS_PORTS

ALL_TRAFFIC = "0.0.0.0/0"
MAX_HOSTS, MAX_HEADERS, MAX_HEADER_NAME, MAX_HEADER_VALUE, MAX_SECRETS = 10, 20, 64, 2048, 32
"""Of `rules`; E2B's."""

_DOMAINS_NEED_DENY = (
    "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out "
    "to block all other traffic."
)
_MASK = re.compile(r"(?=.{1,255}$)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_SECRET = re.compile(r"\$\{e2b\.secrets\.([^{}]*)\}")
_OUTSIDE = (*NEVER, *PRIVATE)
_HTTP, _HTTPS = PortRange(80, 80), PortRange(443, 443)
Json = dict[str, object]
Headers = Mapping[str, str]


def egress_policy(network: Egress | None, allow_internet_access: bool | None) -> Json:
    """Return the policy; raises InvalidArgument, which says what to do."""
    wish = network or Egress()
    if len(wish.rules) > MAX_HOSTS:
        raise InvalidArgument(f"rules: at most {MAX_HOSTS} hosts.")
    allowed, names = _split(wish.allow_out)
    denied, no_names = _split(wish.deny_out)
    if no_names:
        raise InvalidArgument(f"denyOut: {no_names[0]} is no address or CIDR; names can only be allowed.")
    shut = allow_internet_access is False or IPv4Network(ALL_TRAFFIC) in denied
    if names and not shut:
        raise InvalidArgument(_DOMAINS_NEED_DENY)
    for one in allowed:
        if one.prefixlen and any(one.subnet_of(refused) for refused in _OUTSIDE):
            raise InvalidArgument(
                f"allowOut: {one} is private or reserved, and never reached this way. A policy of SPACE's own API can "
                "open a private network: PUT /v1/sandboxes/{id}/policy."
            )
    headers = {_name(host): _headers(host, given) for host, given in wish.rules.items()}
    rules = _shut_rules(allowed, names, headers) if shut else _open_rules(denied, _public(allowed), headers)
    document: Json = {"default": "deny" if shut else "allow", "rules": rules}
    if any("${secrets." in value for of_host in headers.values() for value in of_host.values()):
        document["bind_while_open"] = True
    if wish.egress_proxy is not None:
        document["upstream_proxy"] = _upstream_proxy(wish.egress_proxy)
    if wish.dns_servers:
        document["dns_servers"] = [_dns_server(server) for server in wish.dns_servers]
    return document


def _upstream_proxy(proxy: EgressProxy) -> Json:
    """Return the proxy of a policy. Its password is not in it, only its name."""
    found: Json = {"address": proxy.address}
    if (proxy.username is None) != (proxy.password is None):
        raise InvalidArgument("egressProxy: username and password, or neither.")
    if proxy.username is not None:
        found |= {"username": proxy.username, "password": f"${{secrets.{OWN_PASSWORD}}}"}
    if proxy.tls is not None and proxy.tls.enabled:
        parts = (("server_name", proxy.tls.server_name), ("ca", proxy.tls.ca_cert))
        found["tls"] = {name: part for name, part in parts if part is not None} or True
    try:
        read_proxy(found)
    except SpaceError as error:
        raise InvalidArgument(f"egressProxy: {error}") from None
    return found


def _dns_server(text: str) -> str:
    try:
        read_dns_servers([text])
    except SpaceError as error:
        raise InvalidArgument(f"dnsServers: {error}") from None
    return text


def proxy_password(network: Egress | None) -> SecretStr | None:
    """Return the password that came with a network configuration."""
    return None if network is None or network.egress_proxy is None else network.egress_proxy.password


def _split(entries: Sequence[str]) -> tuple[list[IPv4Network], list[HostPattern]]:
    """Return the addresses and the names of a list; raises InvalidArgument for what is neither, and for IPv6."""
    addresses, names = [], []
    for entry in entries:
        try:
            network = ip_network(entry, strict=False)
        except ValueError:
            names.append(_name(entry))
            continue
        if isinstance(network, IPv6Network):
            raise InvalidArgument(f"{entry[:50]}: IPv6 does not leave a sandbox here, so there is nothing to list.")
        addresses.append(network)
    return addresses, names


def _name(text: str) -> HostPattern:
    try:
        return host_pattern(text.lower())
    except SpaceError as error:
        raise InvalidArgument(str(error)) from None


def _headers(host: str, rules: Sequence[Rule]) -> Headers:
    """Return the headers that requests to a host get, in our form; raises InvalidArgument."""
    if len(rules) > 1:
        raise InvalidArgument(f"rules.{host}: at most one transform.")
    found: dict[str, str] = {}
    secrets: set[str] = set()
    for name, value in (rules[0].transform.headers if rules else {}).items():
        if len(name) > MAX_HEADER_NAME or len(value) > MAX_HEADER_VALUE:
            raise InvalidArgument(
                f"rules.{host}: a header has at most {MAX_HEADER_NAME} and {MAX_HEADER_VALUE} characters."
            )
        if "${e2b.identity." in value:
            raise InvalidArgument(f"rules.{host}: identity tokens are not offered here; use a secret.")
        secrets.update(_SECRET.findall(value))
        found[name] = _SECRET.sub(r"${secrets.\1}", value)
    if len(found) > MAX_HEADERS or len(secrets) > MAX_SECRETS:
        raise InvalidArgument(f"rules.{host}: at most {MAX_HEADERS} headers and {MAX_SECRETS} secrets.")
    return found


def _public(networks: Sequence[IPv4Network]) -> list[IPv4Network]:
    """Return what of these networks is on the public internet."""
    return _without(networks, _OUTSIDE)


def _without(networks: Sequence[IPv4Network], taken: Sequence[IPv4Network]) -> list[IPv4Network]:
    """Return the addresses of `networks` that are not in `taken`."""
    left = list(networks)
    for gone in taken:
        kept: list[IPv4Network] = []
        for one in left:
            if not one.overlaps(gone):
                kept.append(one)
            elif gone.subnet_of(one) and gone != one:
                kept.extend(one.address_exclude(gone))
        left = kept
    return list(collapse_addresses(left))


def _open_rules(
    denied: Sequence[IPv4Network],
    allowed: Sequence[IPv4Network],
    headers: Mapping[HostPattern, Headers],
) -> list[Json]:
    rules: list[Json] = [{"action": "deny", "cidr": str(one)} for one in _public(_without(_public(denied), allowed))]
    for host, of_host in headers.items():
        rules += _host_rules(host, of_host)
    raw = minus((ALL_PORTS,), [_HTTP, _HTTPS])
    rules.append({"action": "allow", "host": "*", "protocol": "tcp", "ports": _ports(raw)})
    rules.append({"action": "allow", "cidr": ALL_TRAFFIC, "protocol": "tcp", "ports": _ports([ALL_PORTS])})
    return rules


def _shut_rules(
    allowed: Sequence[IPv4Network],
    names: Sequence[HostPattern],
    headers: Mapping[HostPattern, Headers],
) -> list[Json]:
    rules: list[Json] = []
    for host, of_host in headers.items():
        if any(name.covers(host) for name in names):
            rules += _host_rules(host, of_host)
    for name in names:
        if name not in headers:
            rules += _host_rules(name, {})
    targets = [ALL_TRAFFIC] if IPv4Network(ALL_TRAFFIC) in allowed else map(str, _public(allowed))
    rules += [
        {"action": "allow", "cidr": target, "protocol": "tcp", "ports": _ports([ALL_PORTS])} for target in targets
    ]
    return rules


def _host_rules(host: HostPattern, headers: Headers) -> list[Json]:
    """Return the rules that let requests to a host out, with these headers; by https alone where one has a secret."""
    rule: Json = {"action": "allow", "host": str(host), "websocket": True}
    if headers:
        rule["headers"] = dict(headers)
    https = rule | {"protocol": "https", "ports": _ports([_HTTPS])}
    if any("${secrets." in value for value in headers.values()):
        return [https, {"action": "deny", "host": str(host)}]
    return [https, rule | {"protocol": "http", "ports": _ports([_HTTP])}]


def _ports(ports: Sequence[PortRange]) -> list[str]:
    return [str(one) for one in ports]


def checked_mask(network: Network | None) -> str | None:
    """Return the Host that servers in the sandbox see; raises InvalidArgument for what cannot be one."""
    mask = None if network is None else network.mask_request_host
    if mask is not None and _MASK.fullmatch(mask.replace("${PORT}", "0")) is None:
        raise InvalidArgument(f"mask request host is not valid: {mask[:80]}")
    return mask


def check_https_ports(network: Network | None) -> None:
    """Raise InvalidArgument for what is no port of a server in the sandbox."""
    for port in [] if network is None else network.https_ports:
        if port not in ALL_PORTS or port in (AGENT_PORT, *WORKERS_PORTS):
            raise InvalidArgument(f"httpsPorts: {port} is no port of a server of yours, 1 to 65535.")


def https_ports(said_before: Mapping[str, object] | None) -> Sequence[int]:
    """Return the ports whose servers speak TLS themselves, from what a client said."""
    network = (said_before or {}).get("network")
    ports = network.get("httpsPorts") if isinstance(network, dict) else None
    return [port for port in ports if isinstance(port, int)] if isinstance(ports, list) else []


def said(network: Network | None, allow_internet_access: bool | None) -> Json:
    """Return what a client said, as the info call answers it."""
    found: Json = {"allowInternetAccess": allow_internet_access}
    if network is not None:
        found["network"] = _shown(network)
    return found


def _shown(network: Egress) -> Json:
    """Return what of it is read back: not the proxy's password, nor its authorities, as E2B has it."""
    return network.model_dump(
        by_alias=True,
        exclude_none=True,
        exclude_unset=True,
        exclude={"egress_proxy": {"password": True, "tls": {"ca_cert": True}}},
    )


def said_anew(before: Mapping[str, object], update: NetworkUpdate) -> Json:
    """Return the same after an update, which replaces all of what may leave and nothing of what comes in."""
    former = before.get("network")
    kept = {
        name: value
        for name, value in (former.items() if isinstance(former, dict) else ())
        if name in ("allowPublicTraffic", "maskRequestHost", "httpsPorts")
    }
    now = _shown(update)
    internet = now.pop("allow_internet_access", None)
    return {**before, "allowInternetAccess": internet, "network": kept | now}
