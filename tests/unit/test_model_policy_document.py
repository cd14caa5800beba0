"""How policies are written: what is refused, and that the error says where."""

import pytest

from space.model.errors import InvalidPolicy
from space.model.policy import Request, decide, matching, secret_names
from space.model.policy_bindings import (
    BasicBinding,
    HeaderBinding,
    OAuthBinding,
    SigV4Binding,
    Template,
    UnresolvedSecret,
)
from space.model.policy_document import MAX_RULES, parse, parse_ceiling, to_document, without_credentials

TOKEN = {"authorization": "Bearer ${secrets.TOKEN}"}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"alow": []}, "the policy: unknown key 'alow'. Did you mean 'allow'?"),
        ({"default": "maybe"}, "default: 'maybe' is not one of deny, allow."),
        ({"preset": "all"}, "preset: 'all' is not one of"),
        ({"allow": {}}, "allow: must be a list"),
        ({"allow": ["allowed.test"]}, "allow[0]: must be an object"),
        ({"allow": [], "rules": []}, "rules: either"),
        ({"rules": [{"host": "a.test"}]}, 'rules[0]: needs an "action"'),
        ({"allow": [{"host": "a.test"}, {"hots": "b.test"}]}, "allow[1]: unknown key 'hots'. Did you mean 'host'?"),
        ({"allow": [{}]}, 'allow[0]: needs a "host" or a "cidr".'),
        ({"allow": [{"host": "a_b.test"}]}, "allow[0].host: "),
        ({"allow": [{"host": 5}]}, "allow[0].host: must be a text"),
        ({"allow": [{"host": "203.0.113.9"}]}, "allow[0].host: "),
        ({"allow": [{"cidr": "169.254.169.254", "ports": [80]}]}, "allow[0].cidr: "),
        ({"allow": [{"cidr": "0.0.0.0/1", "ports": [80]}]}, "allow[0].cidr: "),
        ({"allow": [{"cidr": "203.0.113.0/24"}]}, 'allow[0]: raw TCP needs "ports".'),
        ({"allow": [{"cidr": "203.0.113.0/24", "protocol": "https"}]}, "allow[0]: an address has no name"),
        ({"allow": [{"host": "a.test", "protocol": "tcp"}]}, 'allow[0]: raw TCP needs "ports".'),
        ({"allow": [{"host": "a.test", "protocol": "udp"}]}, "'udp' is not one of https, http, tcp."),
        (
            {"allow": [{"host": "a.test", "protocol": "tcp", "ports": [22], "methods": ["GET"]}]},
            "allow[0]: raw TCP has",
        ),
        ({"allow": [{"host": "a.test", "methods": ["get"]}]}, "allow[0].methods: "),
        ({"allow": [{"host": "a.test", "methods": ["TRACE"]}]}, "allow[0].methods: "),
        ({"allow": [{"host": "a.test", "methods": []}]}, "allow[0].methods: an empty list"),
        ({"allow": [{"host": "a.test", "paths": ["public"]}]}, "allow[0].paths: "),
        ({"allow": [{"host": "a.test", "ports": [0]}]}, "allow[0].ports: 0 is no port"),
        ({"allow": [{"host": "a.test", "ports": [True]}]}, "allow[0].ports: True is no port"),
        ({"allow": [{"host": "a.test", "ports": ["9-1"]}]}, "allow[0].ports: '9-1' is no port"),
        ({"allow": [{"host": "a.test", "ports": [*range(1, 100)]}]}, "allow[0].ports: at most 64"),
        ({"ceiling": {"observe": True}}, "observe: a ceiling only says what may be allowed at most"),
        ({"ceiling": {"allow": [{"host": "a.test"}], "deny": [{"host": "a.test"}]}}, "allow[0]: can never decide"),
        ({"allow": [{"host": "a.test", "ports": [70000]}]}, "allow[0].ports: 70000 is no port"),
        ({"allow": [{"host": "a.test", "websocket": 1}]}, "allow[0].websocket: must be true or false"),
        ({"allow": [{"host": "a.test", "limits": {"requests": 1}}]}, "allow[0].limits: limits: unknown key"),
        ({"allow": [{"host": "a.test", "limits": {"upload_bytes": 0}}]}, "allow[0].limits: upload_bytes"),
        (
            {"allow": [{"host": "a.test", "protocols": ["https", "tcp"], "ports": [1], "limits": {"upload_bytes": 1}}]},
            "allow[0]: limits count requests or raw connections; make two rules.",
        ),
        ({"deny": [{"host": "a.test", "websocket": True}]}, "deny[0]: websocket is for allow rules."),
        ({"deny": [{"host": "a.test", "cidr": "203.0.113.0/24"}]}, "deny[0]: a deny rule is about a host or a cidr"),
        ({"observe": "yes"}, "observe: must be true or false"),
        ({"ask": {"timeout_s": 1000}}, "ask.timeout_s: must be a whole number, 1 to 300"),
        ({"allow": [{"host": f"h{i}.test"} for i in range(MAX_RULES + 1)]}, "The policy has 257 rules"),
    ],
)
def test_malformed(document: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse(document)
    assert str(caught.value).startswith(words) or words in str(caught.value)
    assert (caught.value.slug, caught.value.status) == ("invalid_policy", 422)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"allow": [{"host": "a.test"}], "deny": [{"host": "a.test"}]}, "allow[0]: can never decide, since deny[0]"),
        ({"allow": [{"host": "a.x.test"}], "deny": [{"host": "*.test"}]}, "allow[0]: can never decide, since deny[0]"),
        (
            {"rules": [{"action": "allow", "host": "*.test"}, {"action": "deny", "host": "a.test", "protocol": "https",
                                                               "ports": [443]}]},
            "rules[1]: can never decide, since rules[0]",
        ),
        (
            {"allow": [{"host": "a.test", "paths": ["/a/**"]},
                       {"host": "a.test", "paths": ["/a/b/*"], "headers": TOKEN}]},
            "allow[1]: can never decide, since allow[0]",
        ),
        (
            {"allow": [{"host": "a.test"}, {"host": "*.test", "protocol": "tcp", "ports": ["400-500"]}]},
            "allow[1]: same host and port as allow[0], one as tcp, one not",
        ),
        (
            {"allow": [{"host": "a.test", "protocols": ["https", "tcp"], "ports": [443]}]},
            "allow[0]: the same port as tcp and as https or http",
        ),
        (
            {
                "allow": [
                    {"host": "a.test", "paths": ["/a/*"], "headers": TOKEN},
                    {"host": "a.test", "paths": ["/*/b"], "headers": TOKEN},
                ]
            },
            "allow[1]: some requests may fit it and allow[0]",
        ),
    ],
)  # fmt: skip
def test_contradictions(document: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse(document)
    assert str(caught.value).startswith(words)


def test_repetition_is_no_contradiction() -> None:
    parse({"allow": [{"host": "*.test"}, {"host": "a.test"}]})
    parse({"preset": "packages", "allow": [{"host": "pypi.org", "methods": ["GET", "HEAD"]}]})
    parse({"allow": [{"host": "a.test"}, {"host": "a.test", "protocol": "tcp", "ports": [22]}]})


def _bound(**more: object) -> dict[str, object]:
    return {"host": "bound.test", "headers": TOKEN} | more


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"allow": [_bound(protocol="http")]}, "allow[0]: credentials go over https only."),
        ({"allow": [_bound(protocols=["https", "http"])]}, "allow[0]: credentials go over https only."),
        ({"allow": [_bound(host="*.bound.test")]}, "allow[0]: a credential is bound to one exact host."),
        ({"default": "allow", "allow": [_bound()]}, "allow[0]: credentials need a policy that denies by default"),
        ({"preset": "open", "allow": [_bound()]}, "allow[0]: credentials need a policy that denies by default"),
        ({"observe": True, "allow": [_bound()]}, "allow[0]: credentials need a policy that denies by default"),
        ({"allow": [_bound(), {"host": "*"}]}, "allow[0]: credentials need a policy that denies by default"),
        ({"allow": [_bound(), {"host": "bound.test", "protocol": "http"}]}, "allow[0]: its host has a credential"),
        ({"bind_while_open": True, "default": "allow", "allow": [_bound()]}, "allow[0]: bind_while_open needs a deny"),
        ({"bind_while_open": True, "default": "allow", "rules": [
            {"action": "allow", "host": "*", "protocol": "tcp", "ports": [22]},
            {"action": "allow"} | _bound(), {"action": "deny", "host": "bound.test"}]},
         "rules[1]: its host has a credential, so rules[0]"),
        ({"allow": [_bound(secrets=[{"kind": "header", "header": "x-a", "value": "plain"}])]},
         "allow[0].secrets[0]: has no ${secrets.NAME}"),
        ({"allow": [_bound(headers={"x-a": "${secrets.a b}"})]}, "allow[0].headers.x-a: A placeholder"),
        ({"allow": [_bound(headers={"x-a": "${TOKEN}"})]}, "allow[0].headers.x-a: A placeholder"),
        ({"allow": [_bound(headers={"x-a": "\u00fc${secrets.A}"})]}, "allow[0].headers.x-a: A template"),
        ({"allow": [_bound(headers={"Host": "${secrets.A}"})]}, "allow[0].headers: 'Host' is no header"),
        ({"allow": [_bound(headers={"x-space-a": "${secrets.A}"})]}, "allow[0].headers: 'x-space-a' is no header"),
        ({"allow": [_bound(headers={"a\r\nb": "${secrets.A}"})]}, "allow[0].headers: 'a\\r\\nb' is no header"),
        ({"allow": [_bound(secrets=[{"kind": "magic"}])]}, "allow[0].secrets[0].kind: 'magic' is not one of"),
        ({"allow": [_bound(secrets=[{"kind": "basic", "username": "a", "password": "${secrets.B}"}])]},
         "allow[0]: two credentials for the same place, header authorization."),
        ({"deny": [_bound()]}, "deny[0]: headers is for allow rules."),
    ],
)  # fmt: skip
def test_credentials_that_could_leave_another_way(document: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse(document)
    assert str(caught.value).startswith(words)


def test_every_kind_of_credential_survives_writing() -> None:
    kinds: list[dict[str, object]] = [
        {"kind": "header", "header": "X-Api-Key", "value": "${secrets.KEY}"},
        {"kind": "basic", "username": "x-access-token", "password": "${secrets.GIT}"},
        {"kind": "query", "parameter": "key", "value": "${secrets.KEY}"},
        {
            "kind": "sigv4", "access_key_id": "${secrets.ID}", "secret_access_key": "${secrets.SECRET}",
            "session_token": "${secrets.SESSION}", "service": "s3", "region": "eu-central-1",
        },
        {
            "kind": "oauth", "token_url": "https://id.test/token", "client_id": "app",
            "client_secret": "${secrets.CLIENT}", "refresh_token": "${secrets.REFRESH}", "scope": "read write",
        },
    ]  # fmt: skip
    policy = parse({"allow": [{"host": f"h{i}.test", "secrets": [kind]} for i, kind in enumerate(kinds)]})
    assert parse(to_document(policy)) == policy
    types = [type(rule.bindings[0]) for rule in policy.rules]
    assert types[:2] == [HeaderBinding, BasicBinding]
    assert types[3:] == [SigV4Binding, OAuthBinding]
    assert secret_names(policy) == {"KEY", "GIT", "ID", "SECRET", "SESSION", "CLIENT", "REFRESH"}


def test_a_credential_goes_with_the_rule_that_decides() -> None:
    policy = parse({"allow": [_bound(methods=["GET"], paths=["/repos/a/**"]), {"host": "bound.test"}]})
    binding = HeaderBinding("authorization", Template("Bearer ${secrets.TOKEN}"))
    assert matching(policy, Request("https", "bound.test", 443, "GET", "/repos/a/x")) == (binding,)
    assert matching(policy, Request("https", "bound.test", 443, "POST", "/repos/a/x")) == ()
    assert matching(policy, Request("https", "bound.test", 443, "GET", "/repos/b/x")) == ()
    assert matching(policy, Request("https", "other.test", 443, "GET", "/repos/a/x")) == ()


def test_rendering_names_what_is_missing_and_shows_no_value() -> None:
    template = Template("${secrets.A}:${secrets.B}")
    assert template.render({"A": "${secrets.B}", "B": "2"}) == "${secrets.B}:2", "a value is never read as a template"
    with pytest.raises(UnresolvedSecret) as caught:
        template.render({"A": "canary"})
    assert "secret B" in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "document",
    [{"observe": True}, {"ask": True}, {"allow": [_bound()]}, {"ceiling": {}},
     {"allow": [{"host": "a.test", "limits": {"upload_bytes": 1}}]}],
)  # fmt: skip
def test_a_ceiling_only_bounds(document: dict[str, object]) -> None:
    with pytest.raises(InvalidPolicy):
        parse_ceiling(document)


def test_a_copy_without_credentials_allows_the_same() -> None:
    document = {"preset": "none", "allow": [_bound(), {"host": "a.test", "paths": ["/a"]}]}
    copied = without_credentials(document)
    assert copied == {"preset": "none", "allow": [{"host": "bound.test"}, {"host": "a.test", "paths": ["/a"]}]}
    assert secret_names(parse(copied)) == frozenset()


OAUTH: dict[str, object] = {
    "kind": "oauth", "token_url": "https://id.test/t", "client_id": "a", "client_secret": "${secrets.C}"
}  # fmt: skip
SIGV4: dict[str, object] = {"kind": "sigv4", "access_key_id": "a", "secret_access_key": "${secrets.P}", "service": "s3"}


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (OAUTH | {"token_url": "http://id.test/t"}, "is no https URL"),
        (OAUTH | {"token_url": "https://u@id.test/"}, "is no https URL"),
        (OAUTH | {"token_url": "https://id.test/#x"}, "is no https URL"),
        (OAUTH | {"token_url": "https://10.0.0.1/"}, "is no host name"),
        (OAUTH | {"scope": "a\0"}, "has control characters"),
        ({"kind": "oauth", "client_id": "a", "client_secret": "${secrets.C}"}, "needs 'token_url'"),
        ({"kind": "oauth", "token_url": "https://id.test/", "client_id": "${secrets.C}"}, "needs a client_secret"),
        (SIGV4, "needs 'region'"),
        (SIGV4 | {"region": "EU"}, "needs 'region'"),
        ({"kind": "basic", "username": "a:b", "password": "${secrets.P}"}, "a username has no ':'"),
        ({"kind": "basic", "username": "a"}, "needs 'password'"),
        ({"kind": "query", "parameter": "a&b", "value": "${secrets.P}"}, "needs 'parameter' of the form"),
        ({"kind": "query", "parameter": "a", "value": "${secrets.P}" + "x" * 3000}, "has more than 2048 characters"),
        ({"kind": "header", "value": "${secrets.P}"}, "is no header"),
        ({"kind": "header", "header": "a", "value": "${secrets.P}", "more": 1}, "unknown key 'more'"),
    ],
)
def test_malformed_credentials(secret: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse({"allow": [{"host": "a.test", "secrets": [secret]}]})
    assert str(caught.value).startswith("allow[0].secrets[0]")
    assert words in str(caught.value)


def test_how_much_one_policy_may_hold() -> None:
    rules = [{"host": f"h{i}.test", "paths": [f"/{j}" for j in range(100)]} for i in range(5)]
    parse({"allow": rules})
    with pytest.raises(InvalidPolicy, match="The policy has 600 path patterns"):
        parse({"allow": [*rules, {"host": "x.test", "paths": [f"/{j}" for j in range(100)]}]})


def test_a_header_without_a_secret_goes_anywhere() -> None:
    document = {
        "default": "allow",
        "allow": [{"host": "*.a.test", "headers": {"X-Team": "blue"}, "protocols": ["https", "http"]}],
    }
    policy = parse(document)
    (binding,) = matching(policy, Request("http", "b.a.test", 80))
    assert (binding.slot, binding.secrets) == ("header x-team", ())
    assert secret_names(policy) == frozenset()


def test_a_credential_beside_an_open_policy_has_its_host_for_itself() -> None:
    rules = [
        {"action": "allow", "host": "bound.test", "headers": TOKEN},
        {"action": "deny", "host": "bound.test"},
        {"action": "allow", "host": "*", "protocol": "tcp", "ports": ["1-79"]},
    ]
    policy = parse({"default": "allow", "bind_while_open": True, "rules": rules})
    assert len(matching(policy, Request("https", "bound.test", 443))) == 1
    assert matching(policy, Request("https", "other.test", 443)) == ()
    assert decide(policy, Request("https", "other.test", 443)).allowed
    for refused in (
        Request("https", "bound.test", 8443),
        Request("http", "bound.test", 80),
        Request("tcp", "bound.test", 22),
    ):
        assert not decide(policy, refused).allowed
    assert parse(to_document(policy)) == policy
