"""Configuration of the edge: the public front on TCP.

Three kinds of requests come in:
- A call of a sandbox's agent in SPACE's own API (`/v1/sandboxes/<id>/commands...` and `/files...`).
- A request for a port of a sandbox, as E2B's clients and browsers make it: by name, by header, or by a signed URL.
- Everything else goes to the api, which authenticates it by itself; asking twice would double the cost of each call.

For the first two the api is asked who this is and whether they may (wire/edge.py). Its 200 names the way in
`x-space-to`; then the bytes go to the ingress proxy without passing the api. Its 4xx, body included, is the client's
answer. A 5xx counts as no decision: 503. The routes below ask for whatever could be meant for a sandbox; what is meant
is the api's to say, and only what it says is acted upon.

No header that decides (`x-space-*`) survives from a client, and no credential of the API travels on towards a guest.
"""

from collections.abc import Sequence
from pathlib import Path

from space.host.daemon import User
from space.layout import Layout
from space.proxy import parts
from space.proxy.parts import Node
from space.wire import edge

SECRET = "edge"  # noqa: S105 - the name of it
_AUTHZ = "envoy.filters.http.ext_authz"
_LUA = "envoy.filters.http.lua"
_HEAP_MIB = 512
_DATA_PLANE = "/v1/sandboxes/[a-z0-9]{20}/(commands|files)(/.*)?"
"""Paths of agents' calls (RE2, matched whole, without the query)."""

_NAMED = r"(?i)[0-9]+-[a-z0-9]+(-[a-z0-9]+)?\..+"
"""Names that could be a sandbox's port."""

_DECISION = "30s"
"""The longest a decision takes: a request for a sandbox that sleeps waits for it (control/lifecycle.py: WAKE_S)."""

_NODE_IDLE_S = parts.IDLE_S - 60
"""How long an idle connection to the ingress proxy is kept: for less than that keeps it, so that none is closed under a
request that is on its way."""

_CREDENTIALS = ("x-api-key", "authorization", "cookie")

_NOT_FOR_GUESTS = (edge.TO, edge.ORIGIN, "e2b-sandbox-id", "e2b-sandbox-port", "e2b-traffic-access-token")

_NEVER = ("alt-svc", "clear-site-data", "x-accel-redirect", "x-sendfile")
"""Headers of a guest's answer that would act on a whole domain in a browser, or on a proxy in front of us."""

_NOT_ON_A_SHARED_ORIGIN = (
    *_NEVER, "server", "set-cookie", "strict-transport-security", "service-worker-allowed", "nel", "report-to",
    "reporting-endpoints", "proxy-authenticate",
)  # fmt: skip
"""Those that would act on other sandboxes, where all have one name."""

_STRICTLY_NOT = (*_NOT_ON_A_SHARED_ORIGIN, "link", "refresh", "location", "content-location", "www-authenticate")
"""Those that would act on a page, or send a client elsewhere: one that follows redirects takes its tokens along."""

_GUEST_ANSWERS = (*_STRICTLY_NOT, "access-control-allow-origin", "access-control-allow-credentials")
"""Those that an answer in SPACE's own API has no use for."""

_HOST_COOKIES = """
function envoy_on_response(handle)
  local headers = handle:headers()
  local kept, changed = {}, false
  for index = 0, headers:getNumValues("set-cookie") - 1 do
    local cookie, count = headers:getAtIndex("set-cookie", index):gsub(";%s*[dD][oO][mM][aA][iI][nN]%s*=[^;]*", "")
    kept[#kept + 1] = cookie
    changed = changed or count > 0
  end
  if changed then
    headers:remove("set-cookie")
    for _, cookie in ipairs(kept) do
      headers:add("set-cookie", cookie)
    end
  end
end
"""
"""A cookie of a port is for that port's name: with `Domain` it would be sent to every other sandbox."""

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


_INERT = [
    _overwrite("x-content-type-options", "nosniff"),
    _overwrite("content-security-policy", "sandbox; default-src 'none'"),
]
"""A file of a guest that is opened in a browser must not run as a page of the API's origin."""

_UPGRADE: Node = {"name": "upgrade", "present_match": True}
_NO_UPGRADE = [{"upgrade_type": "websocket", "enabled": False}]
_UNASKED = {_AUTHZ: parts.typed("extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute", disabled=True)}


def _header(name: str, value: str) -> Node:
    return {"name": name, "string_match": {"exact": value}}


def _to(cluster: str, **action: object) -> Node:
    return {"cluster": cluster, "timeout": "0s", "idle_timeout": "0s", **action}


def _visit(origin: str, hidden: Sequence[str], **fields: object) -> Node:
    """Return the route for a sandbox's port; `hidden` are headers of its answer that the client does not get.

    Where the guest has a name of its own for a client, it is told that one when it sees another.
    """
    own = origin == edge.OWN
    return {
        "match": {
            "prefix": "/",
            "headers": [
                _header(edge.TO, edge.NODE),
                {"name": edge.PORT, "present_match": True},
                _header(edge.ORIGIN, origin),
            ],
        },
        "route": _to("node", host_rewrite_header=edge.HOST, append_x_forwarded_host=own),
        "request_headers_to_remove": [*_NOT_FOR_GUESTS, "x-forwarded-for", *(() if own else ["cookie"])],
        "response_headers_to_remove": list(hidden),
        **fields,
    }


def _asked(**match: object) -> Node:
    """Return a route that holds until the api has said where to: then another one fits."""
    return {"match": match, "direct_response": {"status": 503}}


_ROUTES: tuple[Node, ...] = (
    _visit(edge.OWN, _NEVER)
    | {
        "typed_per_filter_config": {
            _LUA: parts.typed(
                "extensions.filters.http.lua.v3.LuaPerRoute", source_code={"inline_string": _HOST_COOKIES}
            )
        }
    },
    _visit(edge.SHARED, _NOT_ON_A_SHARED_ORIGIN),
    _visit(edge.STRICT, _STRICTLY_NOT, response_headers_to_add=_INERT),
    # whether an upgrade may happen is decided by the route of before the decision, which allows it; so what is decided
    # to be something else ends here
    {"match": {"prefix": "/", "headers": [_UPGRADE, {"name": edge.TO, "present_match": True}]},
     "direct_response": {"status": 400}},
    {
        "match": {"safe_regex": {"regex": _DATA_PLANE}, "headers": [_header(edge.TO, edge.NODE)]},
        "route": _to(
            "node",
            regex_rewrite={
                "pattern": {"regex": "^/v1/sandboxes/[a-z0-9]{20}/(commands|files)"},
                "substitution": r"/v1/\1",
            },
        ),
        "request_headers_to_remove": [
            *_CREDENTIALS, *_NOT_FOR_GUESTS, *parts.STEERING, "x-forwarded-host", *parts.CLIENT_ADDRESS
        ],
        "response_headers_to_remove": list(_GUEST_ANSWERS),
        "response_headers_to_add": _INERT,
    },
    {
        "match": {"prefix": "/", "headers": [_header(edge.TO, edge.API)]},
        "route": _to("api"),
        "request_headers_to_remove": [*edge.VERDICT, *parts.STEERING],
        "response_headers_to_remove": ["server"],
    },
    _asked(prefix="/", headers=[{"name": ":authority", "string_match": {"safe_regex": {"regex": _NAMED}}}]),
    {
        # a browser asks whether it may send these headers, without them, so nobody else could say yes
        "match": {
            "prefix": "/",
            "headers": [
                _header(":method", "OPTIONS"),
                {
                    "name": "access-control-request-headers",
                    "string_match": {"contains": "e2b-sandbox-id", "ignore_case": True},
                },
            ],
        },
        "direct_response": {"status": 204},
        "response_headers_to_add": [
            _overwrite("access-control-allow-origin", "*"),
            _overwrite("access-control-allow-methods", "%REQ(access-control-request-method)%"),
            _overwrite("access-control-allow-headers", "%REQ(access-control-request-headers)%"),
            _overwrite("access-control-max-age", "7200"),
        ],
        "typed_per_filter_config": _UNASKED,
    },
    _asked(prefix="/", headers=[{"name": "e2b-sandbox-id", "present_match": True}]),
    _asked(path="/files", query_parameters=[{"name": "signature", "present_match": True}]),
    _asked(safe_regex={"regex": _DATA_PLANE}),
    {
        # the api's decisions are asked for by the edge alone
        "match": {"path_separated_prefix": "/internal"},
        "direct_response": {"status": 404},
        "typed_per_filter_config": _UNASKED,
    },
    {
        "match": {"prefix": "/"},
        "route": _to("api", upgrade_configs=_NO_UPGRADE),
        "request_headers_to_remove": list(parts.STEERING),
        "response_headers_to_remove": ["server"],
        "typed_per_filter_config": _UNASKED,
    },
)  # fmt: skip

_OURS = "request.path.startsWith('/v1/')"
_VISIT = f"'{edge.PORT}' in request.headers"
_DOWN = "xds.cluster_name == 'api' && response.code == 503"
_UNDECIDED = "response.code_details == 'ext_authz_error'"

_ANSWERS = (
    *(
        parts.renumbered(f"response.code == {number} && response.code_details == 'ext_authz_denied'", status)
        for status, number in edge.IN_PLACE_OF.items()
    ),
    parts.answer(
        f"{_UNDECIDED} && {_OURS}", 503, "unavailable", "Temporarily unavailable",
        "The API cannot decide about this request just now; it may be restarting. Try again.", 1,
    ),
    parts.e2b_answer(_UNDECIDED, 503, "SPACE cannot decide about this request just now. Try again.", again=True),
    parts.e2b_answer(
        f"xds.cluster_name == 'node' && {_VISIT}", 503, "The sandbox's host did not take the request. Try again.",
        again=True,
    ),
    parts.answer(
        "xds.cluster_name == 'node'", 503, "sandbox_unreachable", "Sandbox does not answer",
        "The sandbox's host did not take the request; its proxy may be restarting. Try again.", 1,
    ),
    parts.answer(
        f"{_DOWN} && {_OURS}", 503, "unavailable", "Temporarily unavailable",
        "The API does not answer; it may be restarting. Try again.", 1,
    ),
    # a client that tries again by itself must not make a sandbox twice: only what the api never got may be sent again
    parts.e2b_answer(
        f"{_DOWN} && response.code_details.contains('connection_failure')", 503,
        "SPACE does not answer just now. Try again.", again=True,
    ),
    parts.e2b_answer(
        _DOWN, 503, "SPACE ended this request; it may have been carried out. Look before you try again.", again=False
    ),
)  # fmt: skip


def user(layout: Layout) -> User:
    """Return who the edge runs as: its uid, and the groups that may connect to the api and to the ingress proxy."""
    return User(layout.edge_uid, layout.edge_uid, (layout.edge_api_gid, layout.edge_ingress_gid))


def config(layout: Layout, host: str, port: int, secret: Path | None) -> str:
    """Return the configuration as YAML; `host` is the IP address to listen on, `port` a free TCP port (not 0).

    `secret`: where the certificate is, in the form that cli/tls.py gives it; None for HTTP alone.
    """
    authz = parts.extension(
        _AUTHZ,
        "extensions.filters.http.ext_authz.v3.ExtAuthz",
        http_service={
            "server_uri": {"uri": "http://api", "cluster": "api", "timeout": _DECISION},
            "path_prefix": edge.PREFIX,
            "authorization_response": {
                "allowed_upstream_headers": {"patterns": [{"exact": name} for name in edge.VERDICT]},
                "allowed_client_headers": {"patterns": [{"exact": name} for name in edge.CLIENT]},
            },
        },
        allowed_headers={"patterns": [{"exact": name} for name in edge.ASKED]},
        failure_mode_allow=False,
        clear_route_cache=True,
        validate_mutations=True,
        status_on_error={"code": "ServiceUnavailable"},
    )
    manager = parts.connection_manager(
        "edge",
        strip=parts.stripped_early((*parts.FORGED_PREFIXES, "x-space-"), parts.FORGED_NAMES),
        answers=_ANSWERS,
        routes=_ROUTES,
        filters=[authz, parts.extension(_LUA, "extensions.filters.http.lua.v3.Lua")],
        # long enough that a client which still uploads reads the refusal, short enough that a dead stream ends
        delayed_close="0.1s",
        upgrade_configs=[{"upgrade_type": "websocket"}],
        # a user's server may have `%2F` in its paths, and so have E2B's template ids; on the agents' routes the api
        # refuses it
        path_with_escaped_slashes_action="KEEP_UNCHANGED",
    )
    address: Node = {"socket_address": {"address": host, "port_value": port}}
    front = _listener(address, manager, secret) | {"socket_options": _KEEPALIVE}
    node = parts.pipe_cluster(
        "node",
        layout.ingress_sock,
        typed_extension_protocol_options=parts.http_protocol(
            common_http_protocol_options={"idle_timeout": f"{_NODE_IDLE_S}s"},
            explicit_http_config={"http_protocol_options": {}},
        ),
    )
    clusters = [node, parts.pipe_cluster("api", layout.api_sock)]
    return parts.document([front], clusters, _HEAP_MIB)


def _listener(address: Node, manager: Node, secret: Path | None) -> Node:
    """Return the listener. With a certificate it takes TLS, and clear text from this host alone: `space` on it."""
    if secret is None:
        return parts.listener("edge", address, {"filters": [manager]})
    tls: Node = {
        "filter_chain_match": {"transport_protocol": "tls"},
        "transport_socket_connect_timeout": "10s",
        "transport_socket": _terminating(secret),
        "filters": [manager],
    }
    clear: Node = {
        "filter_chain_match": {"transport_protocol": "raw_buffer", "source_type": "SAME_IP_OR_LOOPBACK"},
        "filters": [manager],
    }
    return parts.listener(
        "edge",
        address,
        tls,
        clear,
        listener_filters_timeout="10s",
        listener_filters=[
            parts.extension(
                "envoy.filters.listener.tls_inspector",
                "extensions.filters.listener.tls_inspector.v3.TlsInspector",
                max_client_hello_size=16384,
            )
        ],
    )


def _terminating(secret: Path) -> Node:
    """Return TLS with the certificate in a file, read again when something in its folder was replaced."""
    source = {
        "resource_api_version": "V3",
        "path_config_source": {"path": str(secret), "watched_directory": {"path": str(secret.parent)}},
    }
    return parts.extension(
        "envoy.transport_sockets.tls",
        "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context={
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_certificate_sds_secret_configs": [{"name": SECRET, "sds_config": source}],
        },
    )
