"""Path patterns, and paths that can be read in two ways."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.model.errors import InvalidArgument
from space.model.policy_paths import AmbiguousPath, PathPattern, canonical_path, path_pattern


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("/public/**", "/public/x", True),
        ("/public/**", "/public/x/y", True),
        ("/public/**", "/public/", True),
        ("/public/**", "/public", False),
        ("/public/**", "/publicx/y", False),
        ("/**", "/", True),
        ("/repos/*/issues", "/repos/a/issues", True),
        ("/repos/*/issues", "/repos/a/b/issues", False),
        ("/**/info/refs", "/org/repo.git/info/refs", True),
        ("/**/info/refs", "/info/refs", False),
        ("/a/**/b/**/c", "/a/1/b/2/3/c", True),
        ("/a/**/b/**/c", "/a/1/b/c", False),
        ("/v*/x", "/v12/x", True),
        ("/v*2/x", "/v1/x", False),
        ("/exact", "/exact", True),
        ("/exact", "/exact/", False),
        ("/f\u00fc r", "/f%C3%BC%20r", True),
    ],
)
def test_matching(pattern: str, path: str, expected: bool) -> None:
    assert path_pattern(pattern).matches(canonical_path(path)) is expected


@pytest.mark.parametrize(
    "path",
    [
        *("/public/../secret", "/public/%2e%2e/secret", "/public/..%2fsecret", "/public/..;/secret", "/public//x"),
        *("/public/%00", "/public/%252e", "/public/%c0%ae", "/public/a\\b", "/public/%5cb", "/public/./x", "/public/."),
        *("/public/%3bx", "/public/#x", "/public/%zz", "/public/%", "public", "*", "", "/p\u00fc", "/a b", "/a\tb"),
        *("http://allowed.test/", "/" + "a" * 20_000, "/%ff", "/%0a"),
    ],
)
def test_ambiguous(path: str) -> None:
    with pytest.raises(AmbiguousPath):
        canonical_path(path)


def test_the_query_is_not_judged() -> None:
    assert canonical_path("/public/x?a=../%2f;//#") == "/public/x"
    assert canonical_path("/@scope/name") == "/@scope/name"


@pytest.mark.parametrize(
    "text", ["", "public", "/a?b", "/a**", "/**a", "//a", "/a/../b", "/%2a", "/a;b", "/" + "a" * 300]
)
def test_bad_patterns(text: str) -> None:
    with pytest.raises(InvalidArgument):
        path_pattern(text)


segments = st.text("ab*", min_size=0, max_size=3).filter(lambda text: "**" not in text)
patterns = st.lists(st.one_of(segments, st.just("**")), min_size=1, max_size=5).map(
    lambda parts: PathPattern("/" + "/".join(parts), tuple(parts))
)
paths = st.lists(st.text("ab", max_size=3), min_size=1, max_size=6).map(lambda parts: "/" + "/".join(parts))


def _as_regex(pattern: PathPattern) -> str:
    """Say the same as a regular expression, which is slow but plain."""
    parts = [
        "[^/]*(?:/[^/]*)*" if segment == "**" else re.escape(segment).replace(r"\*", "[^/]*")
        for segment in pattern.segments
    ]
    return "/" + "/".join(parts)


@given(patterns, paths)
def test_matching_is_that_of_the_plain_definition(pattern: PathPattern, path: str) -> None:
    assert pattern.matches(path) is (re.fullmatch(_as_regex(pattern), path) is not None)


@given(patterns, patterns, paths)
def test_covering_and_overlapping_are_sound(one: PathPattern, other: PathPattern, path: str) -> None:
    if one.covers(other) and other.matches(path):
        assert one.matches(path)
    if one.matches(path) and other.matches(path):
        assert one.overlaps(other)


@given(patterns)
def test_a_pattern_covers_itself(pattern: PathPattern) -> None:
    assert pattern.covers(pattern)
    assert pattern.overlaps(pattern)
