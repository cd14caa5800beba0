"""Targets as intervals that nft takes: they cover the same, and do not overlap."""

import ipaddress
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.net.openings import Target, _disjoint

NETWORKS = [IPv4Network(text) for text in ("10.0.0.0/28", "10.0.0.0/30", "10.0.0.4/30", "10.0.0.5/32", "10.0.0.16/30")]
PORTS = st.tuples(st.integers(1, 12), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
TARGETS = st.sets(st.builds(lambda n, p: Target(n, *p), st.sampled_from(NETWORKS), PORTS), max_size=8)


def _covered(targets: set[Target]) -> dict[tuple[IPv4Address, int], int]:
    found: dict[tuple[IPv4Address, int], int] = {}
    for target in targets:
        for address in target.network:
            for port in range(target.first_port, target.last_port + 1):
                found[address, port] = found.get((address, port), 0) + 1
    return found


@given(TARGETS)
def test_the_same_is_covered_once(targets: set[Target]) -> None:
    parted = _covered(_disjoint(targets))
    assert parted.keys() == _covered(targets).keys()
    assert set(parted.values()) <= {1}


def test_what_a_target_is() -> None:
    assert Target(IPv4Network("198.18.0.9/32"), 22, 22).element() == "198.18.0.9 . 22"
    assert Target(IPv4Network("10.0.0.0/8"), 1, 9).element() == "10.0.0.0/8 . 1-9"
    assert Target(IPv4Network("198.18.0.9/32"), 22, 22).synthetic
    assert not Target(IPv4Network("198.18.0.9/32"), 22, 22).private
    assert Target(IPv4Network("10.1.0.0/16"), 22, 22).private
    assert not Target(IPv4Network("8.8.8.8/32"), 22, 22).private
    public = Target(IPv4Network("0.0.0.0/0"), 1, 65535)
    assert (public.private, public.everywhere, public.element()) == (False, True, "1-65535")
    with pytest.raises(ValueError, match="IPv4"):
        Target.of(ipaddress.IPv6Network("::/0"), 1, 2)
