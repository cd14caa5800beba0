"""The life cycle's table: what no sequence of events may break."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.model.lifecycle import LIVE, TRANSITIONS, Event, IllegalTransition, State, advance

events = st.lists(st.sampled_from(Event), max_size=30)


def lived(happened: list[Event]) -> list[State]:
    """Return the states of a sandbox to which these events are told, those that cannot happen left out."""
    states = [State.CREATING]
    for event in happened:
        if event in TRANSITIONS[states[-1]]:
            states.append(advance(states[-1], event))
    return states


@given(events)
def test_a_failed_sandbox_only_ever_gets_deleted(happened: list[Event]) -> None:
    states = lived(happened)
    if State.FAILED in states:
        after = states[states.index(State.FAILED) + 1 :]
        assert set(after) <= {State.DELETING, State.DELETED}


@given(events)
def test_nothing_follows_deleted_and_nothing_leaves_deleting_but_it(happened: list[Event]) -> None:
    states = lived(happened)
    if State.DELETING in states:
        assert states[states.index(State.DELETING) + 1 :] in ([], [State.DELETED])


@given(events)
def test_no_sandbox_is_created_twice(happened: list[Event]) -> None:
    assert State.CREATING not in lived(happened)[1:]


@pytest.mark.parametrize("state", State)
def test_delete_works_from_every_state_and_ends(state: State) -> None:
    if state in (State.DELETING, State.DELETED):
        assert Event.DELETE_ASKED not in TRANSITIONS[state]
    else:
        assert advance(advance(state, Event.DELETE_ASKED), Event.DELETED) is State.DELETED


@pytest.mark.parametrize("state", State)
def test_whatever_may_hold_a_vm_can_fail(state: State) -> None:
    assert (Event.FAILED in TRANSITIONS[state]) == (state in LIVE)


def test_an_impossible_event_is_refused_by_name() -> None:
    with pytest.raises(IllegalTransition, match="started cannot happen to a sandbox that is failed"):
        advance(State.FAILED, Event.STARTED)
