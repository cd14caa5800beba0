"""Pieces of Envoy's static configuration that the edge and the ingress proxy have in common.

The configurations are built as plain data and written as YAML: Envoy's own protobuf classes in Python lag behind the
binary. Settings that close a hole say which; those that only bound a resource say what they bound.
"""

from collections.abc import Sequence
from pathlib import Path

import yaml

from space.wire.refusal import JSON, PAGE, page

Node = dict[str, object]
"""A piece of configuration: what YAML can hold."""

ANSWER_CONTENT_TYPE = "application/problem+json"
MAX_CONNECTIONS = 15000
"""Client connections of one proxy; well below a quarter of its 65,536 descriptors (two each, and the rest)."""

IDLE_S = 300
"""How long a listener keeps a connection that carries nothing."""

WITHHELD = "withheld"
"""The details of an answer that the redactor gives in place of a server's (redactor/service.py)."""

_TYPES = "type.googleapis.com/envoy"
_BUFFER_BYTES = 64 * 1024
"""Held for one connection before its reader is waited for: a 2 GiB upload passes through this much memory."""


def typed(kind: str, **fields: object) -> Node:
    """Return a typed configuration: `kind` is the message's name below `envoy.`."""
    return {"@type": f"{_TYPES}.{kind}", **fields}


def extension(name: str, kind: str, **fields: object) -> Node:
    """Return a named extension with its typed configuration."""
    return {"name": name, "typed_config": typed(kind, **fields)}


def stripped_early(prefixes: Sequence[str], names: Sequence[str]) -> Node:
    """Return the mutation that removes request headers on arrival, before anything in the proxy reads them."""
    return extension(
        "strip",
        "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=[
            *({"remove_on_match": {"key_matcher": {"prefix": prefix}}} for prefix in prefixes),
            *({"remove": name} for name in names),
        ],
    )


FORGED_PREFIXES = ("x-envoy-", "x-forwarded-")
"""Headers that steer a proxy (dial address, retries, timeouts) or say who the client is; no client may."""

STEERING = (
    "x-original-url", "x-rewrite-url", "x-http-method", "x-http-method-override", "x-method-override", "x-request-id",
)  # fmt: skip
"""Headers by which some frameworks route a request elsewhere than was judged, or name it."""

FORGED_NAMES = ("forwarded", "via", "proxy-authorization", "proxy-connection", "alt-used")
"""The same as FORGED_PREFIXES, by name."""

CLIENT_ADDRESS = ("x-forwarded-for", "x-forwarded-proto")
"""What the edge tells the api about the client, and a guest must not see."""

_ADDED_BY_ENVOY = ("x-envoy-internal", "x-envoy-external-address", "x-envoy-expected-rq-timeout-ms")
"""What Envoy itself adds to a request, for Envoys behind it; nobody of ours reads it."""


def answer(expression: str, status: int, code: str, title: str, detail: str, retry_after_s: int | None = None) -> Node:
    """Return the rule that turns an answer of the proxy's own into problem+json.

    `expression` (CEL) says which; it may use `response.code`, `response.code_details` and `xds.cluster_name`.
    Answers that carry a decision (`ext_authz_denied`, WITHHELD) have their body already and must never match.
    """
    headers: Node = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    problem: Node = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail}
    return _spoken(expression, status, headers, ANSWER_CONTENT_TYPE, json_format=problem)


def _when(expression: str) -> Node:
    return {
        "extension_filter": extension(
            "envoy.access_loggers.extension_filters.cel",
            "extensions.access_loggers.filters.cel.v3.ExpressionFilter",
            expression=expression,
        )
    }


def renumbered(expression: str, status: int) -> Node:
    """Return the rule that gives an answer of the proxy's own another status and leaves its body."""
    return {"filter": _when(expression), "status_code": status}


def _spoken(expression: str, status: int, headers: Node, content_type: str, **body: object) -> Node:
    ours = f"response.code >= 400 && !(response.code_details in ['ext_authz_denied', '{WITHHELD}'])"
    return {
        "filter": _when(f"{ours} && ({expression})"),
        "status_code": status,
        "headers_to_add": [{"header": {"key": key, "value": value}} for key, value in headers.items()],
        "body_format_override": {"content_type": content_type, **body},
    }


def refusal(expression: str, status: int, message: str, source: str, **extra: object) -> tuple[Node, Node]:
    """Return the rules that turn an answer of the proxy's own into a refusal (wire/refusal.py): page, and JSON.

    `source` is the filter in whose metadata the sandbox and the port are.
    """
    sandbox, port = (f"%DYNAMIC_METADATA({source}:{key})%" for key in ("sandbox", "port"))
    navigating = "'accept' in request.headers && request.headers['accept'].contains('text/html')"
    headers: Node = {"access-control-allow-origin": "*", "cache-control": "no-store"}
    fields: Node = {"sandboxId": sandbox, "message": message, "port": port, **extra, "code": status}
    # `%` begins a command of Envoy's; the page's own text has none
    text = page(message, sandbox, port)
    return (
        _spoken(f"({expression}) && {navigating}", status, headers, PAGE, text_format_source={"inline_string": text}),
        _spoken(expression, status, headers, JSON, json_format=fields),
    )


def e2b_answer(expression: str, status: int, message: str, *, again: bool) -> Node:
    """Return the rule that turns an answer of the proxy's own into an error of E2B's API.

    `again` tells its clients whether to send the request once more; without it they would decide by the status.
    """
    headers: Node = {"should-retry": "true", "retry-after": "1"} if again else {"should-retry": "false"}
    return _spoken(expression, status, headers, JSON, json_format={"code": status, "message": message})


_MALFORMED = (
    answer(
        "response.code_details == 'path_normalization_failed'", 400, "bad_request", "Bad request",
        "The path cannot be used: it holds an encoded slash or backslash, or climbs above the root.",
    ),
    answer(
        "response.code == 431 || response.code_details.contains('too_many_headers')"
        " || response.code_details.contains('headers_too_large')",
        431, "headers_too_large", "Headers too large",
        "The request has more than 100 headers or more than 60 KiB of them; send fewer.",
    ),
    answer(
        "response.code == 400 || response.code == 501 || response.code_details == 'upgrade_failed'",
        400, "bad_request", "Bad request",
        "The request is not valid HTTP, or wants an upgrade or a transfer encoding that is not served; see RFC 9112.",
    ),
    answer("response.code == 404", 404, "not_found", "Not found", "There is nothing at this path."),
    answer(
        "response.code == 408", 408, "request_timeout", "Request timeout",
        "The request's headers did not arrive within 10 s; send it again.",
    ),
    answer(
        "response.code == 426", 426, "http_version", "HTTP version not supported", "Use HTTP/1.1 or HTTP/2.",
    ),
    answer(
        "true", 503, "unavailable", "Temporarily unavailable",
        "The request could not be passed on just now. Try again.", 1,
    ),
)  # fmt: skip
"""The last of every proxy's answers, in order; the first that matches is given, and the last always does."""


def connection_manager(
    name: str,
    *,
    strip: Node,
    answers: Sequence[Node],
    routes: Sequence[Node],
    filters: Sequence[Node],
    delayed_close: str,
    **fields: object,
) -> Node:
    """Return the HTTP connection manager of a listener; `fields` replace what is set here.

    Streams live as long as their ends do, so no timeout of a stream is set here; what is bounded is the time for a
    request's headers, idle connections, headers' size, and memory per connection and HTTP/2 stream.
    """
    settings: Node = dict(  # noqa: C408 - the message reads as its fields
        stat_prefix=name,
        # the path that is judged is the path that is sent; `%2F` and `%5C` have no use in any path of ours
        normalize_path=True,
        merge_slashes=False,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        use_remote_address=True,
        internal_address_config={},
        generate_request_id=False,
        server_header_transformation="PASS_THROUGH",
        max_request_headers_kb=60,
        stream_idle_timeout="0s",
        request_timeout="0s",
        request_headers_timeout="10s",
        delayed_close_timeout=delayed_close,
        common_http_protocol_options={"max_headers_count": 100, "idle_timeout": f"{IDLE_S}s"},
        http_protocol_options={"allow_absolute_url": False},
        http2_protocol_options={
            "max_concurrent_streams": 100,
            "initial_stream_window_size": 256 * 1024,
            "initial_connection_window_size": 1024 * 1024,
        },
        early_header_mutation_extensions=[strip],
        local_reply_config={"mappers": [*answers, *_MALFORMED]},
        route_config={
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": list(routes)}],
            "request_headers_to_remove": list(_ADDED_BY_ENVOY),
        },
        http_filters=[
            *filters,
            extension(
                "envoy.filters.http.router", "extensions.filters.http.router.v3.Router", suppress_envoy_headers=True
            ),
        ],
    )
    return extension(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        **(settings | fields),
    )


def listener(name: str, address: Node, *chains: Node, **fields: object) -> Node:
    """Return a listener with these filter chains."""
    return {
        "name": name,
        "address": address,
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "filter_chains": list(chains),
        **fields,
    }


def pipe(path: Path) -> Node:
    """Return the address of a unix socket."""
    return {"pipe": {"path": str(path)}}


def cluster(name: str, *, max_retries: object = 0, **fields: object) -> Node:
    """Return an upstream, its limits above what the listener lets in: one sandbox must not refuse another.

    `max_retries` at once; 0 forbids them, whatever a route says.
    """
    limits = {"max_connections": 65536, "max_pending_requests": 65536, "max_requests": 65536}
    return {
        "name": name,
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "circuit_breakers": {"thresholds": [{"priority": "DEFAULT", "max_retries": max_retries, **limits}]},
        **fields,
    }


def pipe_cluster(name: str, path: Path, **fields: object) -> Node:
    """Return an upstream that is a unix socket."""
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": pipe(path)}}]}]
    load = {"cluster_name": name, "endpoints": endpoints}
    return cluster(name, type="STATIC", connect_timeout="1s", load_assignment=load, **fields)


def http_protocol(**fields: object) -> Node:
    """Return the protocol options of a cluster."""
    key = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {key: typed(key.removeprefix("envoy."), **fields)}


def document(listeners: Sequence[Node], clusters: Sequence[Node], max_heap_mib: int, node: str = "space") -> str:
    """Return the whole configuration as YAML. There is no admin interface: it could dump memory and turn on logging.

    `node` is who this proxy is for services that it subscribes to.
    """
    connections = "envoy.resource_monitors.global_downstream_max_connections"
    heap = "envoy.resource_monitors.fixed_heap"
    return yaml.safe_dump(
        {
            "node": {"id": node, "cluster": node},
            "static_resources": {"listeners": list(listeners), "clusters": list(clusters)},
            "overload_manager": {
                "refresh_interval": "0.25s",
                "resource_monitors": [
                    extension(
                        connections,
                        "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                        max_active_downstream_connections=MAX_CONNECTIONS,
                    ),
                    extension(
                        heap,
                        "extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
                        max_heap_size_bytes=max_heap_mib * 1024 * 1024,
                    ),
                ],
                "actions": [
                    {
                        "name": f"envoy.overload_actions.{action}",
                        "triggers": [{"name": heap, "threshold": {"value": at}}],
                    }
                    for action, at in (("shrink_heap", 0.8), ("stop_accepting_requests", 0.95))
                ],
            },
        },
        sort_keys=False,
    )
