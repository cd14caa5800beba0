"""What both static configurations must never lose, and that the installed Envoy takes them."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from space.layout import Layout
from space.proxy import edge, egress, envoy, ingress

LAYOUT = Layout(Path("/srv/space"), "ab12", 0x7000_0000)
ROOTS = Path("/etc/ssl/certs/ca-certificates.crt")
CONFIGS = {
    "edge": edge.config(LAYOUT, "127.0.0.1", 8080, None),
    "ingress": ingress.config(LAYOUT),
    "egress": egress.config(LAYOUT, ROOTS),
}


def _nodes(value: object) -> Iterator[dict[str, object]]:
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from _nodes(child)
    elif isinstance(value, list):
        for child in value:
            yield from _nodes(child)


def _one(config: str, key: str) -> object:
    """Return what every place that has this key says; there must be such a place, and they must agree."""
    found = [node[key] for node in _nodes(yaml.safe_load(config)) if key in node]
    assert all(value == found[0] for value in found)
    return found[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_envoy_accepts_it(name: str, tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    file.write_text(CONFIGS[name])
    argv = [*envoy.argv(file, tmp_path / "log"), "--mode", "validate"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", CONFIGS)
def test_it_refuses_when_unsure_and_has_no_admin(name: str) -> None:
    config = CONFIGS[name]
    assert "admin" not in yaml.safe_load(config)
    assert _one(config, "failure_mode_allow") is False
    assert _one(config, "clear_route_cache") is True
    assert _one(config, "normalize_path") is True
    assert "use_http_header" not in config
    assert "cluster_header" not in config


@pytest.mark.parametrize("name", ["edge", "ingress"])
def test_no_stream_has_a_time_limit(name: str) -> None:
    nodes = list(_nodes(yaml.safe_load(CONFIGS[name])))
    routes = [node["route"] for node in nodes if "route" in node]
    assert routes
    assert all(isinstance(r, dict) and r["timeout"] == r["idle_timeout"] == "0s" for r in routes)
    assert _one(CONFIGS[name], "stream_idle_timeout") == "0s"


def test_no_connection_between_the_proxies_is_closed_under_a_request() -> None:
    """Whoever listens keeps an idle one for longer than who asks."""
    (node,) = (node for node in _nodes(yaml.safe_load(CONFIGS["edge"])) if node.get("name") == "node")
    listeners = yaml.safe_load(CONFIGS["ingress"])["static_resources"]["listeners"]
    asks, listens = (_one(yaml.dump(one), "common_http_protocol_options") for one in (node, listeners))
    assert isinstance(asks, dict)
    assert isinstance(listens, dict)
    assert int(asks["idle_timeout"].removesuffix("s")) < int(listens["idle_timeout"].removesuffix("s"))


def test_ingress_dials_only_slots_and_never_the_internal_port() -> None:
    """The patterns are plain enough to mean the same in Python as in RE2."""
    routes = [node for node in _nodes(yaml.safe_load(CONFIGS["ingress"])) if "match" in node and "route" in node]
    patterns: dict[str, re.Pattern[str]] = {}
    for route in routes:
        (condition,) = route["match"]["dynamic_metadata"]  # type: ignore[index] # plain data
        assert condition["path"] == [{"key": "dst"}]
        cluster = str(route["route"]["cluster"])  # type: ignore[index] # likewise
        patterns[cluster] = re.compile(condition["value"]["string_match"]["safe_regex"]["regex"])
    assert set(patterns) == {"guest", "envd", "port", "port-tls"}
    assert patterns["port-tls"] == patterns["port"]
    for port in range(70000):
        dial = f"100.64.0.3:{port}"
        user = 1 <= port <= 65535 and port not in (49981, 49982, 49983)
        assert (patterns["port"].fullmatch(dial) is not None) == user, port
        for cluster in ("guest", "envd"):
            assert (patterns[cluster].fullmatch(dial) is not None) == (port == 49983), port
    for dial in (
        "100.63.255.255:80",
        "100.128.0.0:80",
        "127.0.0.1:80",
        "100.64.0.3:080",
        "100.64.0.3:",
        "x100.64.0.3:80",
    ):
        assert patterns["port"].fullmatch(dial) is None, dial
    for dial in ("100.127.255.254:80", "100.99.1.0:65535"):
        assert patterns["port"].fullmatch(dial) is not None, dial


def test_egress_dials_only_what_the_decision_says() -> None:
    """EGRESS C2: no header and no address of the guest's choice is ever dialled; every way out asks for `dial`."""
    document = yaml.safe_load(CONFIGS["egress"])
    clusters = {cluster["name"]: cluster for cluster in document["static_resources"]["clusters"]}
    for name in ("up_tls", "up_plain"):
        assert clusters[name]["original_dst_lb_config"] == {
            "metadata_key": {"key": "envoy.filters.http.ext_authz", "path": [{"key": "dial"}]}
        }
        assert clusters[name]["connection_pool_per_downstream_connection"] is True  # M2: no two sandboxes share one
    routes = [node for node in _nodes(document) if "match" in node and "route" in node]
    assert len(routes) == 6
    for route in routes:
        (condition,) = route["match"]["dynamic_metadata"]  # type: ignore[index] # plain data
        assert condition["path"] == [{"key": "dial"}]


def test_egress_parts_its_calls_of_the_gateway() -> None:
    """EGRESS C1c: a flood of certificate requests must not use up the decisions' requests."""
    text = CONFIGS["egress"]
    used = {node["cluster_name"] for node in _nodes(yaml.safe_load(text)) if len(node) == 1 and "cluster_name" in node}
    assert used == {"authz", "certificates", "log", "redactor"}


def test_egress_says_which_chain_a_request_came_by() -> None:
    """EGRESS H4: nothing in a request tells TLS from plain HTTP, so the configuration does."""
    document = yaml.safe_load(CONFIGS["egress"])
    (listener,) = document["static_resources"]["listeners"]
    seen = {}
    for chain in listener["filter_chains"]:
        (found,) = [node["chain"] for node in _nodes(chain) if "chain" in node]
        seen[chain["filter_chain_match"]["transport_protocol"]] = found
    assert seen == {"tls": "tls", "raw_buffer": "plain"}


def test_egress_takes_no_identity_from_a_header() -> None:
    """EGRESS H2: the address in decisions, limits and logs is the connection's."""
    text = CONFIGS["egress"]
    assert _one(text, "use_remote_address") is True
    assert _one(text, "skip_xff_append") is True
    assert _one(text, "generate_request_id") is False
    (strip,) = {str(node["mutations"]) for node in _nodes(yaml.safe_load(text)) if "mutations" in node}
    for name in ("x-forwarded-", "x-envoy-", "x-space-", "x-original-url", "x-http-method-override"):
        assert name in strip


def test_egress_never_logs_headers() -> None:
    """EGRESS H5: what is added to a request must not be in a log."""
    text = CONFIGS["egress"]
    assert "%REQ" not in text
    assert "additional_request_headers_to_log" not in text
    assert "/tap" not in text


@pytest.mark.parametrize("name", CONFIGS)
def test_every_upstream_has_limits_above_the_listeners(name: str) -> None:
    document = yaml.safe_load(CONFIGS[name])
    for cluster in document["static_resources"]["clusters"]:
        (limits,) = cluster["circuit_breakers"]["thresholds"]
        assert min(limits["max_connections"], limits["max_pending_requests"], limits["max_requests"]) == 65536


def test_sockets_are_for_pairs() -> None:
    assert edge.user(LAYOUT).groups == (LAYOUT.edge_api_gid, LAYOUT.edge_ingress_gid)
    assert ingress.user(LAYOUT).groups == (LAYOUT.ingress_gateway_gid,)
    assert egress.user(LAYOUT).groups == (LAYOUT.egress_gateway_gid, LAYOUT.egress_redactor_gid)
    assert len({edge.user(LAYOUT).uid, ingress.user(LAYOUT).uid, egress.user(LAYOUT).uid}) == 3
    assert yaml.safe_load(CONFIGS["ingress"])["static_resources"]["listeners"][0]["address"]["pipe"]["mode"] == 0o660


def test_the_binary_can_be_run_from_another_place_of_the_environment() -> None:
    assert envoy.binary().is_file()
    moved = envoy.binary(Path("/run/venv"))
    assert moved.is_relative_to("/run/venv")
    assert moved.name == envoy.binary().name
