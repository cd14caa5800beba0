"""Configuration of the edge: the public front on TCP.

Two kinds of requests come in:
- A call of a sandbox's agent (`/v1/sandboxes/<id>/commands...` and `/files...`): the api is asked who this is and
  whether they may (`/internal/authz` before the same method and path). Its 200 names the way in `x-space-to`, the
  sandbox, and the agent's token; then the bytes go to the ingress proxy without passing the api. Its 4xx, body
  included, is the client's answer. A 5xx counts as no decision: 503.
- Everything else goes to the api, which authenticates it by itself; asking twice would double the cost of each call.

No header that decides (`x-space-*`, `x-access-token`) survives from a client, and no credential of the API travels on
towards a guest.
"""

from space.host.daemon import User
from space.layout import Layout
from space.proxy import parts
from space.proxy.parts import Node

_AUTHZ = "envoy.filters.http.ext_authz"
_HEAP_MIB = 512
_DATA_PLANE = "/v1/sandboxes/[a-z0-9]{20}/(commands|files)(/.*)?"
"""Paths of agents' calls (RE2, matched whole, without the query)."""

_DECISION = "30s"
"""The longest a decision takes: a request for a sandbox that sleeps waits for it (control/lifecycle.py: WAKE_S)."""

_CREDENTIALS = ("x-api-key", "authorization", "cookie")
_VERDICT = ("x-space-to", "x-space-sandbox", "x-access-token")

_GUEST_ANSWERS = (
    "server", "set-cookie", "alt-svc", "strict-transport-security", "clear-site-data", "service-worker-allowed",
    "x-accel-redirect", "x-sendfile", "access-control-allow-origin", "access-control-allow-credentials",
    "nel", "report-to", "reporting-endpoints", "link", "refresh", "location", "content-location",
    "www-authenticate", "proxy-authenticate",
)  # fmt: skip
"""Headers of a guest's answer that would act on the API's whole origin in a browser, on a proxy in front of us, or
send a client elsewhere: one that follows redirects may take its `x-api-key` along."""

_SOL_SOCKET, _SO_KEEPALIVE = 1, 9
_IPPROTO_TCP, _TCP_KEEPIDLE, _TCP_KEEPINTVL, _TCP_KEEPCNT = 6, 4, 5, 6
_KEEPALIVE = [
    {"level": level, "name": name, "int_value": value, "state": "STATE_LISTENING"}
    for level, name, value in (
        (_SOL_SOCKET, _SO_KEEPALIVE, 1),
        (_IPPROTO_TCP, _TCP_KEEPIDLE, 60),
        (_IPPROTO_TCP, _TCP_KEEPINTVL, 20),
        (_IPPROTO_TCP, _TCP_KEEPCNT, 3),
    )
]
"""A client whose network is gone is noticed after two minutes; no idle limit does it, since streams may be silent."""


def _overwrite(name: str, value: str) -> Node:
    return {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


_ROUTES: tuple[Node, ...] = (
    {
        "match": {
            "safe_regex": {"regex": _DATA_PLANE},
            "headers": [{"name": "x-space-to", "string_match": {"exact": "node"}}],
        },
        "route": {
            "cluster": "node",
            "timeout": "0s",
            "idle_timeout": "0s",
            "regex_rewrite": {
                "pattern": {"regex": "^/v1/sandboxes/[a-z0-9]{20}/(commands|files)"},
                "substitution": r"/v1/\1",
            },
        },
        "request_headers_to_remove": [*_CREDENTIALS, "x-space-to", *parts.CLIENT_ADDRESS],
        "response_headers_to_remove": list(_GUEST_ANSWERS),
        # a file of a guest that is opened in a browser must not run as a page of the API's origin
        "response_headers_to_add": [
            _overwrite("x-content-type-options", "nosniff"),
            _overwrite("content-security-policy", "sandbox; default-src 'none'"),
        ],
    },
    {
        # until the decision has been made this is the route, and it stays the route when the api keeps the request
        "match": {"safe_regex": {"regex": _DATA_PLANE}},
        "route": {"cluster": "api", "timeout": "0s", "idle_timeout": "0s"},
        "request_headers_to_remove": list(_VERDICT),
        "response_headers_to_remove": ["server"],
    },
    {
        # the api's decisions are asked for by the edge alone
        "match": {"path_separated_prefix": "/internal"},
        "direct_response": {"status": 404},
        "typed_per_filter_config": {
            _AUTHZ: parts.typed("extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute", disabled=True)
        },
    },
    {
        "match": {"prefix": "/"},
        "route": {"cluster": "api", "timeout": "0s", "idle_timeout": "0s"},
        "response_headers_to_remove": ["server"],
        "typed_per_filter_config": {
            _AUTHZ: parts.typed("extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute", disabled=True)
        },
    },
)

_ANSWERS = (
    parts.answer(
        "response.code_details == 'ext_authz_error'", 503, "unavailable", "Temporarily unavailable",
        "The API cannot decide about this request just now; it may be restarting. Try again.", 1,
    ),
    parts.answer(
        "xds.cluster_name == 'node'", 503, "sandbox_unreachable", "Sandbox does not answer",
        "The sandbox's host did not take the request; its proxy may be restarting. Try again.", 1,
    ),
    parts.answer(
        "xds.cluster_name == 'api' && response.code == 503", 503, "unavailable", "Temporarily unavailable",
        "The API does not answer; it may be restarting. Try again.", 1,
    ),
)  # fmt: skip


def user(layout: Layout) -> User:
    """Return who the edge runs as: its uid, and the groups that may connect to the api and to the ingress proxy."""
    return User(layout.edge_uid, layout.edge_uid, (layout.edge_api_gid, layout.edge_ingress_gid))


def config(layout: Layout, host: str, port: int) -> str:
    """Return the configuration as YAML; `host` is the IP address to listen on, `port` a free TCP port (not 0)."""
    authz = parts.extension(
        _AUTHZ,
        "extensions.filters.http.ext_authz.v3.ExtAuthz",
        http_service={
            "server_uri": {"uri": "http://api", "cluster": "api", "timeout": _DECISION},
            "path_prefix": "/internal/authz",
            "authorization_response": {
                "allowed_upstream_headers": {"patterns": [{"exact": name} for name in _VERDICT]},
                "allowed_client_headers": {
                    "patterns": [{"exact": name} for name in ("content-type", "retry-after", "www-authenticate")]
                },
            },
        },
        allowed_headers={"patterns": [{"exact": "x-api-key"}, {"exact": "authorization"}]},
        failure_mode_allow=False,
        clear_route_cache=True,
        validate_mutations=True,
        status_on_error={"code": "ServiceUnavailable"},
    )
    manager = parts.connection_manager(
        "edge",
        strip=parts.stripped_early((*parts.FORGED_PREFIXES, "x-space-"), (*parts.FORGED_NAMES, "x-access-token")),
        answers=_ANSWERS,
        routes=_ROUTES,
        filters=[authz],
        # long enough that a client which still uploads reads the refusal, short enough that a dead stream ends
        delayed_close="0.1s",
    )
    address: Node = {"socket_address": {"address": host, "port_value": port}}
    front = parts.listener("edge", address, {"filters": [manager]}) | {"socket_options": _KEEPALIVE}
    clusters = [parts.pipe_cluster("node", layout.ingress_sock), parts.pipe_cluster("api", layout.api_sock)]
    return parts.document([front], clusters, _HEAP_MIB)
