"""Configuration of the ingress proxy: from its unix socket into the slots of this host.

It runs in the gateway namespace under its own uid and holds no secret. For each request it asks the gateway, which
answers with the address to dial as dynamic metadata. Metadata cannot be written by a client or guest; where it is
missing or not an address of a slot, no route leads anywhere, so Envoy never falls back to an address from a header or
from the connection. Packet rules bound it again: this uid reaches slots' agents and nothing else.
"""

from space.host.daemon import User
from space.layout import Layout
from space.proxy import parts
from space.proxy.parts import Node

_AUTHZ = "envoy.filters.http.ext_authz"
_SOCKET_MODE = 0o660
_HEAP_MIB = 512

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_DIAL = rf"100\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\.{_OCTET}\.{_OCTET}:49983"
"""An address in 100.64.0.0/10 with the agent's port (RE2, matched whole)."""

_ROUTES: tuple[Node, ...] = (
    {
        "match": {
            "prefix": "/",
            "dynamic_metadata": [
                {
                    "filter": _AUTHZ,
                    "path": [{"key": "dst"}],
                    "value": {"string_match": {"safe_regex": {"regex": _DIAL}}},
                }
            ],
        },
        "route": {"cluster": "guest", "timeout": "0s", "idle_timeout": "0s"},
        # the guest sees the client's request and nothing of ours but its own access token
        "request_headers_to_remove": [
            "x-space-sandbox",
            "x-space-to",
            "x-api-key",
            "authorization",
            *parts.CLIENT_ADDRESS,
        ],
    },
    {"match": {"prefix": "/"}, "direct_response": {"status": 503}},
)

_ANSWERS = (
    parts.answer(
        "xds.cluster_name == 'guest'", 503, "sandbox_unreachable", "Sandbox does not answer",
        "The agent in the sandbox did not take the request. Get the sandbox's state; if it is running, try again.", 1,
    ),
    parts.answer(
        "response.code_details == 'ext_authz_error'", 503, "unavailable", "Temporarily unavailable",
        "The gateway of this host does not answer; it may be restarting. Try again.", 1,
    ),
)  # fmt: skip


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
        allowed_headers={"patterns": [{"exact": "x-space-sandbox"}]},
        failure_mode_allow=False,
        clear_route_cache=True,
        validate_mutations=True,
        status_on_error={"code": "ServiceUnavailable"},
    )
    manager = parts.connection_manager(
        "ingress",
        strip=parts.stripped_early(parts.FORGED_PREFIXES, parts.FORGED_NAMES),
        answers=_ANSWERS,
        routes=_ROUTES,
        filters=[authz],
        # a stream whose guest is gone ends now, not after a wait for the edge to close first
        delayed_close="0s",
    )
    address: Node = {"pipe": {"path": str(layout.ingress_sock), "mode": _SOCKET_MODE}}
    guest = parts.cluster(
        "guest",
        type="ORIGINAL_DST",
        lb_policy="CLUSTER_PROVIDED",
        connect_timeout="1s",
        original_dst_lb_config={"metadata_key": {"key": _AUTHZ, "path": [{"key": "dst"}]}},
        # shorter than the agent keeps an idle connection, so that it is never closed under a request
        typed_extension_protocol_options=parts.http_protocol(
            common_http_protocol_options={"idle_timeout": "30s"}, explicit_http_config={"http_protocol_options": {}}
        ),
    )
    gateway = parts.pipe_cluster(
        "authz",
        layout.authz_sock,
        typed_extension_protocol_options=parts.http_protocol(explicit_http_config={"http2_protocol_options": {}}),
    )
    return parts.document([parts.listener("ingress", address, {"filters": [manager]})], [guest, gateway], _HEAP_MIB)
