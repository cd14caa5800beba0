"""Host names and patterns: one spelling, everything else refused."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.model.errors import InvalidArgument
from space.model.policy_addresses import NEVER, PRIVATE, network
from space.model.policy_names import HostPattern, InvalidName, canonical_host, host_pattern

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True).filter(lambda x: not x.startswith("xn--"))
last_labels = st.from_regex(r"[a-z]([a-z0-9-]{0,5}[a-z0-9])?", fullmatch=True).filter(
    lambda x: not x.startswith("xn--")
)
names = st.builds(lambda first, last: ".".join([*first, last]), st.lists(labels, min_size=1, max_size=4), last_labels)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("allowed.test", "allowed.test"),
        ("ALLOWED.test", "allowed.test"),
        ("allowed.test.", "allowed.test"),
        ("r3---sn-abc.example", "r3---sn-abc.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_canonical(text: str, name: str) -> None:
    assert canonical_host(text) == name


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ".",
            "test",
            "allowed.test..",
            ".allowed.test",
            "a..test",
            "[allowed.test]",
            "allowed.test%20",
            "a b.test",
        ),
        *("allowed_name.test", "-a.test", "a-.test", "evil.test\0.allowed.test", "allowed.test\n", "*.allowed.test"),
        *("127.0.0.1", "127.1", "2130706433", "0x7f.1", "1.0x7f", "0177.0.0.1", "[::1]", "::1", "\uff11\uff12\uff17.1"),
        *("\u0430llowed.test", "b\u00fccher.example", "allowed\u3002test", "a" * 64 + ".test", "a." * 126 + "test"),
        *("xn--.test", "xn--a.test", "xn--allowed-.test", "user@allowed.test", "allowed.test:443", "a,b.test"),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        canonical_host(text)


@given(names)
def test_canonical_is_a_fixed_point_in_any_case(name: str) -> None:
    assert canonical_host(name) == name
    assert canonical_host(name.upper() + ".") == name


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_what_is_accepted_is_plain(text: str) -> None:
    try:
        name = canonical_host(text)
    except InvalidName:
        return
    assert set(name) <= set(string.ascii_lowercase + string.digits + "-.")
    assert canonical_host(name) == name


def test_patterns_may_be_unicode() -> None:
    assert host_pattern("*.B\u00fccher.example") == HostPattern("xn--bcher-kva.example", wildcard=True)
    assert str(host_pattern("*.Example.com.")) == "*.example.com"
    with pytest.raises(InvalidName):
        host_pattern("\uff41llowed.test")  # full width: IDNA 2008 maps nothing


@pytest.mark.parametrize("text", ["a*.test", "*a.test", "*.*.test", "a.*.test", "**", "*.", "*.1", "203.0.113.9"])
def test_bad_patterns(text: str) -> None:
    with pytest.raises(InvalidName):
        host_pattern(text)


def test_suffix_patterns_mean_names_below_only() -> None:
    pattern = host_pattern("*.allowed.test")
    assert pattern.matches("a.allowed.test")
    assert pattern.matches("a.b.allowed.test")
    assert not pattern.matches("allowed.test")
    assert not pattern.matches("notallowed.test")


@given(names, names)
def test_covering_and_overlapping_agree_with_matching(one: str, other: str) -> None:
    wild = HostPattern(one, wildcard=True)
    below = f"{other}.{one}" if len(other) + len(one) < 250 else one
    assert wild.matches(below) == wild.covers(HostPattern(below))
    assert wild.covers(HostPattern(below, wildcard=True))
    assert wild.overlaps(HostPattern(other)) == wild.matches(other)
    assert HostPattern("", wildcard=True).covers(wild)
    assert not HostPattern(one).covers(wild)


@pytest.mark.parametrize("never", NEVER, ids=str)
def test_networks_that_no_policy_opens(never: object) -> None:
    with pytest.raises(InvalidArgument):
        network(str(never))


@pytest.mark.parametrize("private", PRIVATE, ids=str)
def test_private_networks_only_by_name(private: object) -> None:
    assert str(network(str(private))) == str(private)
    with pytest.raises(InvalidArgument):
        network(str(network(str(private)).supernet()))


@pytest.mark.parametrize("text", ["0.0.0.0/1", "203.0.113.1/24", "8.0.0.0/5", "::/0", "203.0.113", "", "1.2.3.4/33"])
def test_bad_networks(text: str) -> None:
    with pytest.raises(InvalidArgument):
        network(text)


def test_an_address_is_a_network_of_one() -> None:
    assert str(network("203.0.113.9")) == "203.0.113.9/32"
