"""Configuration of the ingress proxy: from its unix socket into the slots of this host.

It runs in the gateway namespace under its own uid and holds no secret. For each request it asks the gateway, which
answers with the address to dial as dynamic metadata. Metadata cannot be written by a client or guest; where it is
missing or not an address of a slot, no route leads anywhere, so Envoy never falls back to an address from a header or
from the connection. Packet rules bound it again: this uid reaches guests, never their agents' internal ports, and
nothing else.

Requests of SPACE's own surface name no port (`x-space-port`) and go to the agent. Those that name one go to the agent's
E2B protocol or to a server of the user's, where WebSockets may begin.
"""

from space.host.daemon import User
from space.layout import Layout
from space.net.nft import INCOMING
from space.proxy import parts
from space.proxy.parts import Node
from space.wire import edge, refusal

_AUTHZ = "envoy.filters.http.ext_authz"
_SOCKET_MODE = 0o660
_HEAP_MIB = 512

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_SLOT = rf"100\.(?:6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\.{_OCTET}\.{_OCTET}"
"""An address in 100.64.0.0/10 (RE2, matched whole)."""

_AGENT = "49983"
_PORT = (
    "(?:[1-9][0-9]{0,3}|[1-35][0-9]{4}|4(?:[0-8][0-9]{3}|9(?:[0-8][0-9]{2}|9(?:[0-79][0-9]|8[04-9])))"
    "|6(?:[0-4][0-9]{3}|5(?:[0-4][0-9]{2}|5(?:[0-2][0-9]|3[0-5]))))"
)
"""Any port but the agent's three."""

_OURS = (edge.SANDBOX, edge.PORT, edge.HOST, edge.TLS, edge.TO, edge.ORIGIN, "x-forwarded-for")
"""What no guest sees."""

_NOT_FOR_AGENTS = (*_OURS, *parts.STEERING, "x-forwarded-proto", "x-forwarded-host", "x-api-key")
"""What a user's server may have a use for, and the agent has none."""

_IDLE_S = 1
"""How long an idle connection to a user's server is kept: common servers keep theirs for two to five seconds, and one
that is closed by them while a request is on its way fails that request."""

_AWAKENING: Node = {
    "retry_on": "connect-failure",
    "num_retries": 8,
    "retry_back_off": {"base_interval": "0.25s", "max_interval": "0.25s"},
}
"""A server that listens on loopback alone is reached about a second after its start: the agent has to see it first.

Envoy waits for a random part of each interval. Many short ones are a second together, give or take a fifth of it; a few
that grow could be next to nothing.
"""


def _route(cluster: str, ports: str, *headers: Node, **action: object) -> Node:
    dial = {"string_match": {"safe_regex": {"regex": f"{_SLOT}:{ports}"}}}
    return {
        "match": {
            "prefix": "/",
            "headers": list(headers),
            "dynamic_metadata": [{"filter": _AUTHZ, "path": [{"key": "dst"}], "value": dial}],
        },
        "route": {"cluster": cluster, "timeout": "0s", "idle_timeout": "0s", **action},
    }


_NAMED: Node = {"name": edge.PORT, "present_match": True}
_UNNAMED: Node = {"name": edge.PORT, "present_match": False}
_TLS: Node = {"name": edge.TLS, "present_match": True}
_UPGRADE: Node = {"name": "upgrade", "present_match": True}

_ROUTES: tuple[Node, ...] = (
    *(
        _route(cluster, _PORT, _NAMED, *speaks, retry_policy=_AWAKENING) | {"request_headers_to_remove": list(_OURS)}
        for cluster, speaks in (("port-tls", (_TLS,)), ("port", ()))
    ),
    # whether an upgrade may happen is decided by the route of before the decision, so the manager allows it, and what
    # is no user's server gets none
    {"match": {"prefix": "/", "headers": [_UPGRADE]}, "direct_response": {"status": 400}},
    _route("envd", _AGENT, _NAMED) | {"request_headers_to_remove": list(_NOT_FOR_AGENTS)},
    _route("guest", _AGENT, _UNNAMED) | {"request_headers_to_remove": [*_NOT_FOR_AGENTS, "authorization"]},
    {"match": {"prefix": "/"}, "direct_response": {"status": 503}},
)

_NOBODY_LISTENS = "response.code_details.contains('delayed_connect_error:_Connection_refused')"
_TOO_MANY = "response.code_details.contains('delayed_connect_error:_No_route_to_host')"
"""What packet rules say when there are too many connections (net/nft.py)."""

_NATIVE, _E2B = "xds.cluster_name == 'guest'", "xds.cluster_name in ['envd', 'port', 'port-tls']"

_ANSWERS = (
    *parts.refusal(
        f"{_E2B} && {_NOBODY_LISTENS}", 502, refusal.PORT_CLOSED, _AUTHZ
    ),
    *parts.refusal(
        f"{_E2B} && {_TOO_MANY}",
        429, refusal.TOO_MANY.format(limit=INCOMING), _AUTHZ, connectionLimit=INCOMING,
    ),
    *parts.refusal(_E2B, 502, "The sandbox is running but its server did not answer as HTTP", _AUTHZ),
    parts.answer(
        f"{_NATIVE} && {_TOO_MANY}",
        429, "too_many_requests", "Too many requests",
        f"This sandbox has {INCOMING} requests under way already; end some, or wait for their end.", 1,
    ),
    parts.answer(
        _NATIVE, 503, "sandbox_unreachable", "Sandbox does not answer",
        "The agent in the sandbox did not take the request. Get the sandbox's state; if it is running, try again.", 1,
    ),
    parts.answer(
        "response.code_details == 'ext_authz_error'", 503, "unavailable", "Temporarily unavailable",
        "The gateway of this host does not answer; it may be restarting. Try again.", 1,
    ),
)  # fmt: skip


_TLS_UNVERIFIED = parts.extension(
    "envoy.transport_sockets.tls",
    "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
    common_tls_context={"alpn_protocols": ["http/1.1"]},
)


def user(layout: Layout) -> User:
    """Return who the proxy runs as: its uid, and the group that may connect to the gateway's decisions."""
    return User(layout.ingress_uid, layout.ingress_uid, (layout.ingress_gateway_gid,))


def config(layout: Layout) -> str:
    """Return the configuration as YAML."""
    authz = parts.extension(
        _AUTHZ,
        "extensions.filters.http.ext_authz.v3.ExtAuthz",
        grpc_service={"envoy_grpc": {"cluster_name": "authz"}, "timeout": "2s"},
        transport_api_version="V3",
        # what the gateway needs to know; it never sees a token
        allowed_headers={"patterns": [{"exact": name} for name in (edge.SANDBOX, edge.PORT, "accept")]},
        failure_mode_allow=False,
        clear_route_cache=True,
        validate_mutations=True,
        status_on_error={"code": "ServiceUnavailable"},
    )
    manager = parts.connection_manager(
        "ingress",
        # the edge has said by which name and scheme it was called, and nobody else can connect
        strip=parts.stripped_early(["x-envoy-"], ()),
        use_remote_address=False,
        answers=_ANSWERS,
        routes=_ROUTES,
        filters=[authz],
        # An answer that comes before the request's end, as a refusal does, ends the connection. Ended at once, it would
        # take the answer along: the edge, which still writes, sees that nobody reads before it looks for an answer, and
        # says 503. The edge ends it as soon as it has the answer; a stream whose guest is gone ends after this time.
        delayed_close="0.5s",
        upgrade_configs=[{"upgrade_type": "websocket"}],
        # a user's server may have `%2F` in its paths; on the agent's ports no path with an escape is let through
        path_with_escaped_slashes_action="KEEP_UNCHANGED",
    )
    address: Node = {"pipe": {"path": str(layout.ingress_sock), "mode": _SOCKET_MODE}}
    # the agent keeps an idle connection for longer, so that none is closed under a request
    port = {"idle_s": _IDLE_S, "max_retries": 65536}
    guests = [
        _guest("guest", 30), _guest("envd", 30), _guest("port", **port),
        # whoever it is, it is who the slot leads to: there is nobody whose certificate could be wrong
        _guest("port-tls", **port, transport_socket=_TLS_UNVERIFIED),
    ]  # fmt: skip
    gateway = parts.pipe_cluster(
        "authz",
        layout.authz_sock,
        typed_extension_protocol_options=parts.http_protocol(explicit_http_config={"http2_protocol_options": {}}),
    )
    return parts.document([parts.listener("ingress", address, {"filters": [manager]})], [*guests, gateway], _HEAP_MIB)


def _guest(name: str, idle_s: int, max_retries: int = 0, **fields: object) -> Node:
    """Return the way into slots, with connections of its own that are kept for `idle_s`."""
    return parts.cluster(
        name,
        max_retries=max_retries,
        **fields,
        type="ORIGINAL_DST",
        lb_policy="CLUSTER_PROVIDED",
        connect_timeout="1s",
        original_dst_lb_config={"metadata_key": {"key": _AUTHZ, "path": [{"key": "dst"}]}},
        typed_extension_protocol_options=parts.http_protocol(
            common_http_protocol_options={"idle_timeout": f"{idle_s}s"},
            explicit_http_config={"http_protocol_options": {}},
        ),
    )
