"""Addresses for names: never a second name for one, across restarts and forks."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from space.gateway import names as module
from space.gateway.names import Names, NamesExhausted

NAMES = st.sampled_from([f"n{number}.test" for number in range(30)])


class OneNameEach(RuleBasedStateMachine):
    """A sandbox that looks names up, a gateway that is killed between any two steps, and a ledger that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger: dict[str, str] = {}
        self.told: dict[str, str] = {}
        self.names = Names()

    @rule(name=NAMES)
    def look_up(self, name: str) -> None:
        """The whole way: an address is proposed, recorded, learned, told."""
        address = self.names.propose(name)
        self.ledger[address] = name
        self.names.learn({address: name})
        assert self.told.setdefault(address, name) == name

    @rule(name=NAMES)
    def die_after_proposing(self, name: str) -> None:
        """Nobody was told."""
        self.names.propose(name)
        self.names = Names(self.ledger)

    @rule(name=NAMES)
    def die_after_recording(self, name: str) -> None:
        """The worker has it, the guest does not."""
        self.ledger[self.names.propose(name)] = name
        self.names = Names(self.ledger)

    @invariant()
    def every_address_means_what_was_told(self) -> None:
        """Also for a fork, which begins with the same map."""
        for address, name in self.told.items():
            assert self.names.name_of(address) == name
            assert ipaddress.IPv4Address(address) in ipaddress.IPv4Network("198.18.0.0/15")


TestOneNameEach = OneNameEach.TestCase


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NAMES", 3)
    names = Names({"198.18.0.1": "a.test", "198.18.0.2": "b.test", "198.18.0.3": "c.test"})
    assert names.propose("a.test") == "198.18.0.1"
    with pytest.raises(NamesExhausted):
        names.propose("d.test")


def test_an_address_that_is_somebodys_is_passed_over() -> None:
    names = Names({"198.18.0.7": "a.test", "198.18.0.8": "b.test"})
    names._next = 6  # 198.18.0.7
    assert names.propose("c.test") == "198.18.0.9"


@given(st.integers(0, 131069))
def test_proposals_go_round_at_the_end_of_the_range(beginning: int) -> None:
    names = Names()
    names._next = beginning
    found = []
    for number in range(3):
        found.append(names.propose(f"n{number}.test"))
        names.learn({found[-1]: f"n{number}.test"})
    assert len(set(found)) == 3
    assert not {"198.18.0.0", "198.19.255.255"} & set(found)
