"""Numbers and addresses of slots: in range, never twice, across restarts and the wrap."""

import ipaddress
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.host.counter import Counter
from space.net import addresses
from space.net.addresses import LAST_NUMBER, NETWORK

numbers = st.integers(1, LAST_NUMBER)


@given(numbers)
def test_a_pair_is_a_subnet_of_its_own(number: int) -> None:
    pair = addresses.pair(number)
    link = ipaddress.IPv4Network(f"{pair.gateway}/31")
    assert list(link) == [ipaddress.ip_address(pair.gateway), ipaddress.ip_address(pair.slot)]
    assert link.subnet_of(NETWORK)
    assert NETWORK.network_address not in link


@given(numbers, numbers)
def test_two_slots_share_no_address(one: int, two: int) -> None:
    assert one == two or addresses.pair(one).slot != addresses.pair(two).slot


@pytest.mark.parametrize("number", [-1, 0, LAST_NUMBER + 1])
def test_no_pair_outside_the_network(number: int) -> None:
    with pytest.raises(ValueError, match="between"):
        addresses.pair(number)


def test_no_number_twice_across_restarts(tmp_path: Path) -> None:
    given_out: list[int] = []
    for _ in range(3):
        counter = Counter(tmp_path / "next", last=LAST_NUMBER)
        given_out += [counter.take() for _ in range(70)]
    assert len(set(given_out)) == len(given_out)
    assert given_out[0] == 1


def test_no_number_twice_among_threads(tmp_path: Path) -> None:
    counter = Counter(tmp_path / "next", last=LAST_NUMBER)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: counter.take(), range(500)))
    assert sorted(found) == list(range(1, 501))


def test_after_the_last_comes_the_first(tmp_path: Path) -> None:
    file = tmp_path / "next"
    file.write_text(f"{LAST_NUMBER - 3}\n")
    counter = Counter(file, last=LAST_NUMBER)
    assert [counter.take() for _ in range(6)] == [LAST_NUMBER - 3, LAST_NUMBER - 2, LAST_NUMBER - 1, LAST_NUMBER, 1, 2]
    assert Counter(file, last=LAST_NUMBER).take() > 2


def test_a_damaged_counter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "next").write_text("0\n")
    with pytest.raises(ValueError, match="next holds 0"):
        Counter(tmp_path / "next", last=LAST_NUMBER)
