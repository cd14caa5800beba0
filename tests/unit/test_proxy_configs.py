"""What both static configurations must never lose, and that the installed Envoy takes them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from space.layout import Layout
from space.proxy import edge, envoy, ingress

LAYOUT = Layout(Path("/srv/space"), "ab12", 0x7000_0000)
CONFIGS = {"edge": edge.config(LAYOUT, "127.0.0.1", 8080), "ingress": ingress.config(LAYOUT)}


def _nodes(value: object) -> Iterator[dict[str, object]]:
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from _nodes(child)
    elif isinstance(value, list):
        for child in value:
            yield from _nodes(child)


def _one(config: str, key: str) -> object:
    (found,) = [node[key] for node in _nodes(yaml.safe_load(config)) if key in node]
    return found


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


@pytest.mark.parametrize("name", CONFIGS)
def test_no_stream_has_a_time_limit(name: str) -> None:
    nodes = list(_nodes(yaml.safe_load(CONFIGS[name])))
    routes = [node["route"] for node in nodes if "route" in node]
    assert routes
    assert all(isinstance(r, dict) and r["timeout"] == r["idle_timeout"] == "0s" for r in routes)
    assert _one(CONFIGS[name], "stream_idle_timeout") == "0s"


@pytest.mark.parametrize("name", CONFIGS)
def test_every_upstream_has_limits_above_the_listeners(name: str) -> None:
    document = yaml.safe_load(CONFIGS[name])
    for cluster in document["static_resources"]["clusters"]:
        (limits,) = cluster["circuit_breakers"]["thresholds"]
        assert min(limits["max_connections"], limits["max_pending_requests"], limits["max_requests"]) == 65536


def test_sockets_are_for_pairs() -> None:
    assert edge.user(LAYOUT).groups == (LAYOUT.edge_api_gid, LAYOUT.edge_ingress_gid)
    assert ingress.user(LAYOUT).groups == (LAYOUT.ingress_gateway_gid,)
    assert yaml.safe_load(CONFIGS["ingress"])["static_resources"]["listeners"][0]["address"]["pipe"]["mode"] == 0o660


def test_the_binary_can_be_run_from_another_place_of_the_environment() -> None:
    assert envoy.binary().is_file()
    moved = envoy.binary(Path("/run/venv"))
    assert moved.is_relative_to("/run/venv")
    assert moved.name == envoy.binary().name
