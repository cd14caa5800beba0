"""`space policy test` and the files that policies are read from."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from space.cli import policy, secret
from space.cli.policy_file import load
from space.model.errors import InvalidArgument, InvalidPolicy
from space.model.policy import decide
from space.model.policy_document import parse
from space.model.policy_names import InvalidName
from space.model.policy_suggest import suggest

SHOWN = '{allow: [{host: "allowed.test", methods: ["GET"], paths: ["/public/**"]}]}'


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A policy file."""
    path = tmp_path / "policy.yaml"
    path.write_text(SHOWN)
    return str(path)


def tried(*arguments: str) -> tuple[int, str]:
    """Return exit status and output of `space policy test`."""
    done = CliRunner().invoke(policy.app, ["test", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["https://allowed.test/public/x"], 0, "allowed: allow[0] allows it"),
        (["https://ALLOWED.test./public/x?q=1"], 0, "allowed: allow[0] allows it"),
        (["https://allowed.test/public/x", "-X", "POST"], 3, "allow[0] (allow): another method"),
        (["https://allowed.test/secret"], 3, "allow[0] (allow): another path"),
        (["https://allowed.test/public/..%2fx"], 3, "the path can be read in two ways"),
        (["https://allowed.test:8443/public/x"], 3, "allow[0] (allow): another port"),
        (["http://allowed.test/public/x"], 3, "allow[0] (allow): another protocol"),
        (["https://allowed.test/public/x", "--websocket"], 3, "does not allow websockets"),
        (["tcp://203.0.113.9:22"], 3, "denied: no rule allows it, and raw TCP needs one"),
        (["https://pypi.org/simple/", "--preset", "packages"], 0, "preset packages: allow[0] allows it"),
    ],
)
def test_verdicts(file: str, arguments: list[str], status: int, words: str) -> None:
    code, out = tried(*arguments, "--policy", file)
    assert (code, words in out) == (status, True), out


def test_a_ceiling_and_json(file: str, tmp_path: Path) -> None:
    ceiling = tmp_path / "ceiling.json"
    ceiling.write_text('{"allow": [{"host": "other.test"}]}')
    code, out = tried("https://allowed.test/public/x", "-p", file, "--ceiling", str(ceiling), "-o", "json")
    assert (code, json.loads(out)["why"]) == (3, "the project's ceiling: no rule allows it")


@pytest.mark.parametrize(
    "url",
    [
        "allowed.test",
        "ftp://a.test",
        "https://",
        "https://u@a.test",
        "https://a.test:99999",
        "tcp://a.test",
        "https://a_b.test",
    ],
)
def test_what_is_no_request(file: str, url: str) -> None:
    with pytest.raises((InvalidArgument, InvalidName)):
        tried(url, "-p", file)


def test_a_wrong_policy_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("allow: [{host: a.test}, {host: 127.0.0.1}]")
    with pytest.raises(InvalidPolicy, match=r"p.yaml: allow\[1\].host: "):
        tried("https://a.test/", "-p", str(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{a: 1, a: 2}", "key 'a' is there twice"),
        ('{"allow": [], "allow": []}', "key 'allow' is there twice"),
        ("allow: [{host: a.test, host: b.test}]", "key 'host' is there twice"),
        ("[1]", "must hold an object"),
        ("{1: 2}", "must hold an object"),
        ("{", "neither YAML nor JSON"),
        ("a: !!python/object/apply:os.system [ls]", "neither YAML nor JSON"),
        ("", "must hold an object"),
    ],
)
def test_files_are_read_strictly(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        load(text, "x")


def test_what_was_seen_becomes_a_policy() -> None:
    base = {"type": "verdict", "boot": "b", "time": "t", "name": "a.test", "port": 443, "protocol": "https"}
    events = [
        base | {"seq": 1, "allowed": True, "method": "GET", "path": "/chat"},
        base | {"seq": 2, "allowed": False, "method": "POST", "path": "/no"},
        base | {"seq": 3, "type": "traffic", "of": 1, "status": 101},
        base | {"seq": 4, "allowed": True, "protocol": "dns"},
        {"type": "gap", "boot": "b", "seq": 5, "time": "t"},
        base | {"seq": 6, "allowed": True, "protocol": "tcp", "name": "", "address": "203.0.113.9", "port": 22},
    ]
    assert suggest(policy.seen_in(events))["allow"] == [
        {"cidr": "203.0.113.9", "protocol": "tcp", "ports": [22]},
        {"host": "a.test", "methods": ["GET"], "paths": ["/chat"], "websocket": True},
    ]


def test_a_suggested_policy_goes_by_the_same_way() -> None:
    """Else what was to go through a proxy would go around it as soon as somebody takes the suggestion."""
    way = {"upstream_proxy": {"address": "proxy.test:1080", "tls": True}, "dns_servers": ["1.1.1.1"]}
    assert policy.way_of([], way | {"default": "allow"}) == way
    events = [{"type": "verdict", "via": "proxy.test:1080"}, {"type": "gap"}]
    assert policy.way_of(events, {"default": "deny"}) == {}, "its policy of now"
    assert policy.way_of(events, {}) == {"upstream_proxy": {"address": "proxy.test:1080"}}, "it is gone"


def test_the_preset_goes_under_the_files_rules(file: str) -> None:
    from space.cli.policy_file import chosen

    document = chosen(file, "packages")
    assert document is not None
    made = parse(document)
    assert decide(made, policy.request_of("https://allowed.test/public/", "GET", websocket=False)).rule == 0
    assert chosen(None, None) is None


def test_a_secrets_value_is_never_an_argument(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from standard input\n"))
    assert secret._value("A", None) == "from standard input"
    path = tmp_path / "value"
    path.write_text("from a file\r\n")
    assert secret._value("A", path) == "from a file"
    assert CliRunner().invoke(secret.app, ["set", "A", "value"]).exit_code == 2


def test_the_examples_of_the_howto_are_policies() -> None:
    text = (Path(__file__).parents[2] / "docs" / "howto" / "egress.md").read_text()
    whole = [load(found, "howto") for found in re.findall(r"<<'END'\n(.*?)\nEND\n", text, re.DOTALL)]
    parts = [load(found, "howto") for found in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    assert (len(whole), len(parts)) == (1, 2)
    assert decide(
        parse(whole[0]), policy.request_of("https://api.example.com/v1/items", "POST", websocket=False)
    ).allowed
    assert parse(parts[0]).upstream_proxy
    secrets = parts[1]["secrets"]
    assert isinstance(secrets, list)
    for one in secrets:
        assert len(parse({"allow": [{"host": "a.test", "secrets": [one]}]}).rules[0].bindings) == 1
    assert parse({"allow": [{"host": "a.test", "headers": parts[1]["headers"]}]}).rules[0].bindings
