"""Ranges that nobody reaches by accident, and the exceptions of test worlds."""

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.model import ranges

DOCUMENTATION = IPv4Network("203.0.113.0/24")


def _within(address: IPv4Address, networks: tuple[IPv4Network, ...]) -> bool:
    return any(address in network for network in networks)


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_an_exception_lets_out_exactly_itself(address: IPv4Address) -> None:
    exceptions = (DOCUMENTATION, IPv4Network("10.1.2.0/24"), IPv4Network("168.63.129.16/32"))
    excepted = _within(address, exceptions)
    assert _within(address, ranges.refused(exceptions)) == (_within(address, ranges.NEVER) and not excepted)


def test_the_ranges_do_not_overlap() -> None:
    """nft refuses a set of intervals that do."""
    for networks in (ranges.NEVER, ranges.refused((DOCUMENTATION, IPv4Network("10.0.0.0/9")))):
        for index, network in enumerate(networks):
            assert not any(network.overlaps(other) for other in networks[index + 1 :]), network


def test_an_exception_of_nothing_is_an_error() -> None:
    for text in ("8.8.8.0/24", "0.0.0.0/0", "192.0.2.0/23"):
        with pytest.raises(ValueError, match="lies in none"):
            ranges.refused((IPv4Network(text),))


def test_our_own_networks_are_among_them() -> None:
    for network in (ranges.SLOTS, ranges.SYNTHETIC, IPv4Network("169.254.96.0/19")):
        assert any(network.subnet_of(refused) for refused in ranges.NEVER)
