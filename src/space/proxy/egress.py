"""Configuration of the egress proxy: what guests send, judged and passed on to the world.

It runs in the gateway namespace under its own uid. Every TCP connection of a guest to a synthetic address ends here;
TLS is terminated with a certificate that the gateway mints for the name in the ClientHello. For each request the
gateway is asked, and answers with the address to dial as dynamic metadata, which no guest can write. Where that is
missing or not an IPv4 address with a port, no route leads anywhere, so Envoy never falls back to what the guest dialled
or wrote in a header. Packet rules bound it again.

Two chains, equal but for TLS: which of them a request came by is a fact of the configuration (`chain`), not of the
request. This process holds the guests' credentials while it sends them, hence no admin interface, no debug log, and no
header in any log.
"""

from pathlib import Path

from space.host.daemon import User
from space.layout import Layout
from space.proxy import parts
from space.proxy.parts import Node
from space.wire.gateway import EGRESS_HTTP_PORT

_AUTHZ = "envoy.filters.http.ext_authz"
_PROCESSOR = "envoy.filters.http.ext_proc"
_HEAP_MIB = 2048
_DECISION = "310s"
"""The longest a decision takes: a request that a human is asked about is held for up to 300 s (gateway/asking.py).
Everything else the gateway ends after a second or two by itself."""

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_DIAL = rf"({_OCTET}\.){{3}}{_OCTET}:{_PORT}"
"""An IPv4 address and a port, plainly written (RE2, matched whole)."""

_OURS = (
    "x-space-upgrade", "x-space-redact", "x-envoy-original-dst-host", "x-envoy-external-address", "x-envoy-internal",
    "x-envoy-expected-rq-timeout-ms", "x-envoy-attempt-count", "x-forwarded-for", "x-forwarded-proto", "x-request-id",
)  # fmt: skip
"""What we or Envoy add on the way; the upstream sees the guest's request and the credential, nothing of us."""

_IDLE = "300s"
_WEBSOCKET_IDLE = "3600s"
_UPGRADES = {"up_tls": "up_tls_h1", "up_plain": "up_plain"}
"""Which cluster takes upgrades: hardly any server takes a WebSocket over HTTP/2 (RFC 8441), and most speak that too."""
_RATE = {"max_tokens": 2000, "tokens_per_fill": 1000, "fill_interval": "1s"}
"""Requests of one slot address before the gateway is even asked. It keeps one guest's flood out of the decisions of
others; the sandbox's own limits are the gateway's."""

_ANSWERS = (
    parts.answer(
        "response.code_details == 'ext_authz_error'", 503, "unavailable", "Temporarily unavailable",
        "The gateway of this host does not answer, so nothing may leave; it may be restarting. Try again.", 1,
    ),
    parts.answer(
        "response.code_details.startsWith('ext_proc')", 503, "unavailable", "Temporarily unavailable",
        "The answer cannot be searched for secrets just now, so it is not passed on. Try again.", 1,
    ),
    parts.answer(
        "response.code == 429", 429, "too_many_requests", "Too many requests",
        "This sandbox sends more than 1,000 requests a second; send fewer.", 1,
    ),
    parts.answer(
        "response.code_details == 'direct_response'", 403, "egress_denied", "Not allowed",
        "This request may not leave the sandbox.",
    ),
    parts.answer(
        "xds.cluster_name.startsWith('up_')", 502, "egress_failed", "Upstream failed",
        "The request was allowed, but its server could not be reached, or has no valid certificate for this name.",
    ),
)  # fmt: skip


def user(layout: Layout) -> User:
    """Return who the proxy runs as: its uid, and the groups that may connect to the gateway and to the redactor."""
    return User(layout.egress_uid, layout.egress_uid, (layout.egress_gateway_gid, layout.egress_redactor_gid))


def _route(cluster: str, idle: str, *headers: Node) -> Node:
    dial = {"string_match": {"safe_regex": {"regex": _DIAL}}}
    return {
        "match": {
            "prefix": "/",
            "headers": list(headers),
            "dynamic_metadata": [{"filter": _AUTHZ, "path": [{"key": "dial"}], "value": dial}],
        },
        "route": {"cluster": cluster, "timeout": "0s", "idle_timeout": idle},
        "request_headers_to_remove": list(_OURS),
        "response_headers_to_remove": ["alt-svc"],
    }


def _routes(cluster: str) -> list[Node]:
    """Return the routes of a chain.

    Whether an upgrade may happen is decided by the route of before the decision, so the chain allows it and the routes
    of after the decision lead nowhere without the gateway's consent.
    """
    upgrade: Node = {"name": "upgrade", "present_match": True}
    consent: Node = {"name": "x-space-upgrade", "string_match": {"exact": "websocket"}}
    return [
        _route(_UPGRADES[cluster], _WEBSOCKET_IDLE, upgrade, consent),
        {"match": {"prefix": "/", "headers": [upgrade]}, "direct_response": {"status": 403}},
        _route(cluster, _IDLE, {"name": "x-space-redact", "present_match": True}) | _redacted(),
        _route(cluster, _IDLE),
        {"match": {"prefix": "/"}, "direct_response": {"status": 403}},
    ]


def _redacted() -> Node:
    """Return what makes a route's answers pass the redactor; the request's body does not."""
    mode = {
        "request_header_mode": "SKIP",
        "response_header_mode": "SEND",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "response_trailer_mode": "SEND",
    }
    kind = "extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
    return {"typed_per_filter_config": {_PROCESSOR: parts.typed(kind, overrides={"processing_mode": mode})}}


def _redactor() -> Node:
    """Return the filter that does so where a route asks for it, and nothing elsewhere."""
    return parts.extension(
        _PROCESSOR,
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "redactor"}, "timeout": "5s"},
        failure_mode_allow=False,
        message_timeout="5s",
        processing_mode={"request_header_mode": "SKIP", "response_header_mode": "SKIP"},
        metadata_options={"forwarding_namespaces": {"untyped": [_AUTHZ]}},
    )


def _rate_limit() -> Node:
    """Return the filter that bounds each source address by itself.

    The address is the connection's (`use_remote_address`), so no header moves a request into another's bucket.
    """
    return parts.extension(
        "envoy.filters.http.local_ratelimit",
        "extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        stat_prefix="slot",
        token_bucket={"max_tokens": 100000, "tokens_per_fill": 100000, "fill_interval": "1s"},
        filter_enabled={"default_value": {"numerator": 100}},
        filter_enforced={"default_value": {"numerator": 100}},
        rate_limits=[{"actions": [{"remote_address": {}}]}],
        max_dynamic_descriptors=4096,
        descriptors=[{"entries": [{"key": "remote_address"}], "token_bucket": _RATE}],
    )


def _authorization() -> Node:
    return parts.extension(
        _AUTHZ,
        "extensions.filters.http.ext_authz.v3.ExtAuthz",
        grpc_service={"envoy_grpc": {"cluster_name": "authz"}, "timeout": _DECISION},
        transport_api_version="V3",
        failure_mode_allow=False,
        include_tls_session=True,
        clear_route_cache=True,
        validate_mutations=True,
        encode_raw_headers=True,
        status_on_error={"code": "ServiceUnavailable"},
    )


def _log_to_gateway(name: str) -> Node:
    return {
        "log_name": name,
        "transport_api_version": "V3",
        "grpc_service": {"envoy_grpc": {"cluster_name": "log"}},
        "buffer_flush_interval": "0.2s",
    }


def _access_log() -> Node:
    """Return the log that tells the gateway how each request ended: bytes, time, status; no header."""
    kind = "extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig"
    return parts.extension("envoy.access_loggers.http_grpc", kind, common_config=_log_to_gateway("egress"))


def _connection_log() -> Node:
    """Return the log that tells the gateway of connections that ended without TLS although they began it."""
    kind = "extensions.access_loggers.grpc.v3.TcpGrpcAccessLogConfig"
    return parts.extension("envoy.access_loggers.tcp_grpc", kind, common_config=_log_to_gateway("connections"))


def _manager(chain: str) -> Node:
    settings = parts.extension(
        _AUTHZ, "extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute",
        check_settings={"context_extensions": {"chain": chain}},
    )["typed_config"]  # fmt: skip
    host: Node = {
        "name": "all",
        "domains": ["*"],
        "routes": _routes(f"up_{chain}"),
        "typed_per_filter_config": {_AUTHZ: settings},
    }
    return parts.connection_manager(
        chain,
        strip=parts.stripped_early((*parts.FORGED_PREFIXES, "x-space-"), (*parts.FORGED_NAMES, *parts.STEERING)),
        answers=_ANSWERS,
        routes=(),
        filters=[_rate_limit(), _authorization(), _redactor()],
        delayed_close="1s",
        route_config={"virtual_hosts": [host]},
        # package registries and code hosts have `%2F` in paths; where a rule has paths, the gateway refuses it
        path_with_escaped_slashes_action="KEEP_UNCHANGED",
        skip_xff_append=True,
        # `Expect: 100-continue` is answered here. What a server says before its answer (103, too) passes no filter, so
        # the redactor would never see its headers; it ends here.
        proxy_100_continue=False,
        upgrade_configs=[{"upgrade_type": "websocket"}],
        stream_idle_timeout=_IDLE,
        access_log=[_access_log()],
        # what goes on is told meanwhile, so that a budget of bytes ends it
        access_log_options={"access_log_flush_interval": "1s"},
    )


def _certificates() -> Node:
    """Return TLS towards the guest: a certificate for each name, asked for when a ClientHello comes (EGRESS C1)."""
    source = {
        "resource_api_version": "V3",
        "api_config_source": {
            # with deltas the gateway can say no, and take back what it gave; without, each name stays for ever
            "api_type": "DELTA_GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": "certificates"}}],
        },
    }
    selector = parts.extension(
        "envoy.tls.certificate_selectors.on_demand_secret",
        "extensions.transport_sockets.tls.cert_selectors.on_demand_secret.v3.Config",
        config_source=source,
        # a ClientHello without a name asks for this one, which is never given
        certificate_mapper=parts.extension(
            "sni", "extensions.transport_sockets.tls.cert_mappers.sni.v3.SNI", default_value=".no-sni"
        ),
    )
    return parts.extension(
        "envoy.transport_sockets.tls",
        "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        disable_stateless_session_resumption=True,
        disable_stateful_session_resumption=True,
        common_tls_context={
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "alpn_protocols": ["h2", "http/1.1"],
            "custom_tls_certificate_selector": selector,
        },
    )


def _upstream(name: str, **fields: object) -> Node:
    """Return the way out. Each guest connection has upstream connections of its own (EGRESS M2)."""
    return parts.cluster(
        name,
        type="ORIGINAL_DST",
        lb_policy="CLUSTER_PROVIDED",
        connect_timeout="5s",
        original_dst_lb_config={"metadata_key": {"key": _AUTHZ, "path": [{"key": "dial"}]}},
        connection_pool_per_downstream_connection=True,
        **fields,
    )


_H2 = {"initial_stream_window_size": 1024 * 1024, "initial_connection_window_size": 4 * 1024 * 1024}
_BY_ALPN: Node = {"auto_config": {"http2_protocol_options": _H2}}
_HTTP1: Node = {"explicit_http_config": {"http_protocol_options": {}}}


def _upstream_tls(name: str, roots: Path, protocol: Node) -> Node:
    """Return a way out by TLS: the name offered and the name verified are the `:authority` that the gateway set."""
    return _upstream(
        name,
        typed_extension_protocol_options=parts.http_protocol(
            upstream_http_protocol_options={"auto_sni": True, "auto_san_validation": True},
            common_http_protocol_options={"idle_timeout": "60s"},
            **protocol,
        ),
        transport_socket=parts.extension(
            "envoy.transport_sockets.tls",
            "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            max_session_keys=0,
            common_tls_context={
                "tls_params": {
                    "tls_minimum_protocol_version": "TLSv1_2",
                    "tls_maximum_protocol_version": "TLSv1_3",
                },
                "validation_context": {"trusted_ca": {"filename": str(roots)}},
            },
        ),
    )


def _local(name: str, socket: Path) -> Node:
    """Return a cluster of a socket of ours: one for each purpose, so that none can exhaust another's."""
    return parts.pipe_cluster(
        name,
        socket,
        typed_extension_protocol_options=parts.http_protocol(explicit_http_config={"http2_protocol_options": {}}),
    )


def config(layout: Layout, roots: Path) -> str:
    """Return the configuration as YAML; `roots` is the PEM bundle that upstream certificates are verified with."""
    tls: Node = {
        "filter_chain_match": {"transport_protocol": "tls"},
        "transport_socket_connect_timeout": "10s",
        "transport_socket": _certificates(),
        "filters": [_manager("tls")],
    }
    plain: Node = {"filter_chain_match": {"transport_protocol": "raw_buffer"}, "filters": [_manager("plain")]}
    listener = parts.listener(
        "egress",
        {"socket_address": {"address": "0.0.0.0", "port_value": EGRESS_HTTP_PORT}},  # noqa: S104 - packet rules decide who
        tls,
        plain,
        access_log=[_connection_log()],
        listener_filters_timeout="5s",
        continue_on_listener_filters_timeout=False,
        listener_filters=[
            parts.extension(
                "envoy.filters.listener.original_dst", "extensions.filters.listener.original_dst.v3.OriginalDst"
            ),
            parts.extension(
                "envoy.filters.listener.tls_inspector",
                "extensions.filters.listener.tls_inspector.v3.TlsInspector",
                max_client_hello_size=16384,
            ),
        ],
    )
    clusters: list[Node] = [
        _upstream_tls("up_tls", roots, _BY_ALPN),
        _upstream_tls("up_tls_h1", roots, _HTTP1),
        _upstream("up_plain"),
        _local("authz", layout.decisions_sock),
        *(_local(name, layout.egress_sock) for name in ("certificates", "log")),
        _local("redactor", layout.redactor_sock),
    ]
    return parts.document([listener], clusters, _HEAP_MIB, node="egress")
