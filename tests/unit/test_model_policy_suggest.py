"""Suggested policies allow what they were made from, and little more."""

from hypothesis import given
from hypothesis import strategies as st

from space.model.policy import Request, decide
from space.model.policy_document import parse
from space.model.policy_suggest import FEW, Seen, suggest


def test_a_small_workload_is_told_exactly() -> None:
    seen = [
        Seen("https", "api.test", 443, "POST", "/v1/messages"),
        Seen("https", "api.test", 443, "GET", "/v1/models?limit=5"),
        Seen("http", "old.test", 8080, "GET", "/"),
        Seen("tcp", "git.test", 22),
        Seen("tcp", "203.0.113.9", 5432),
        Seen("https", "chat.test", 443, "GET", "/socket", websocket=True),
    ]
    assert suggest(seen) == {
        "default": "deny",
        "allow": [
            {"cidr": "203.0.113.9", "protocol": "tcp", "ports": [5432]},
            {"host": "api.test", "methods": ["GET", "POST"], "paths": ["/v1/messages", "/v1/models"]},
            {"host": "chat.test", "methods": ["GET"], "paths": ["/socket"], "websocket": True},
            {"host": "git.test", "protocol": "tcp", "ports": [22]},
            {"host": "old.test", "protocol": "http", "ports": [8080], "methods": ["GET"], "paths": ["/"]},
        ],
    }


def test_many_paths_are_put_together() -> None:
    seen = [Seen("https", "a.test", 443, "GET", f"/simple/p{n}/") for n in range(FEW + 1)]
    rule = {"host": "a.test", "methods": ["GET"], "paths": ["/index", "/simple/**"]}
    assert suggest([*seen, Seen("https", "a.test", 443, "GET", "/index")])["allow"] == [rule]
    many = [Seen("https", "a.test", 443, "GET", f"/{n}/x") for n in range(100)]
    assert suggest(many)["allow"] == [{"host": "a.test", "methods": ["GET"]}]


paths = st.one_of(
    st.sampled_from(["/", "/a", "/a/b", "/a//b", "/a/%2f", "/**x", "/a*", "/a%3fb", "/%C3%BC", "/" + "x" * 300]),
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts)),
)
requests = st.builds(
    Seen,
    st.sampled_from(["https", "http"]),
    st.sampled_from(["a.test", "b.test"]),
    st.sampled_from([80, 443, 8443]),
    st.sampled_from(["GET", "POST", "PUT"]),
    paths,
    st.booleans(),
)


@given(st.lists(requests, max_size=40))
def test_all_that_was_seen_is_allowed(seen: list[Seen]) -> None:
    policy = parse(suggest(seen))
    for one in seen:
        upgrade = "websocket" if one.websocket else None
        asked = Request(one.protocol, one.host, one.port, one.method, one.path, upgrade)
        assert decide(policy, asked).allowed, one
    assert not decide(policy, Request("https", "c.test", 443)).allowed
