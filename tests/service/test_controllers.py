"""What a worker's facts mean for rows: the tables behind the watch."""

import dataclasses
import itertools
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import insert_sandbox, insert_template

from space.controllers.watch import due, unwanted
from space.model.convergence import TOLD
from space.model.ids import WorkerId
from space.model.lifecycle import LIVE, TRANSITIONS, Event, State
from space.model.sandbox import Desired, Sandbox
from space.store import projects
from space.store.db import Database
from space.wire.worker import VmState

HERE, ELSEWHERE = WorkerId("here"), WorkerId("elsewhere")
VM_STATES: tuple[VmState, ...] = typing.get_args(VmState)


@pytest.fixture
async def row(db: Database) -> Sandbox:
    """A row placed on the worker `here`."""
    project = await projects.ensure(db, "p")
    await insert_template(db, project)
    return await insert_sandbox(db, project, state=State.RUNNING, worker=HERE)


def test_every_event_that_facts_cause_can_happen() -> None:
    for state, events in TOLD.items():
        assert set(events.values()) <= set(TRANSITIONS[state])


async def test_facts_move_rows(row: Sandbox) -> None:
    paused = dataclasses.replace(row, state=State.PAUSED)
    assert due(row, HERE, "failed") is due(paused, HERE, "failed") is Event.FAILED
    assert due(row, HERE, None) is due(paused, HERE, None) is Event.FAILED, "the worker holds nothing of it"
    assert due(row, HERE, "paused") is Event.PAUSED
    assert due(paused, HERE, "running") is Event.RESUMED
    assert due(row, HERE, "running") is due(paused, HERE, "paused") is None, "nothing new"
    suspended = dataclasses.replace(row, state=State.SUSPENDED)
    assert due(suspended, HERE, "failed") is due(suspended, HERE, None) is Event.FAILED
    assert due(suspended, HERE, "suspended") is None
    assert due(suspended, HERE, "running") is Event.RESTORE_BEGUN, "a call was lost: reconciling finds out"
    assert due(row, HERE, "suspended") is due(paused, HERE, "suspended") is Event.SUSPEND_BEGUN


async def test_facts_leave_alone_what_somebody_reconciles_and_what_is_not_theirs(row: Sandbox) -> None:
    states: list[VmState | None] = [*VM_STATES, None]
    for vm in states:
        assert due(None, HERE, vm) is None
        assert due(row, ELSEWHERE, vm) is None
        wished_away = dataclasses.replace(row, spec=dataclasses.replace(row.spec, desired=Desired.DELETED))
        assert due(wished_away, HERE, vm) is None
        for state in set(State) - {State.RUNNING, State.PAUSED, State.SUSPENDED}:
            assert due(dataclasses.replace(row, state=state), HERE, vm) is None
        for state in (State.RUNNING, State.PAUSED, State.SUSPENDED):
            lagging = dataclasses.replace(row, state=state, generation=row.generation + 1)
            assert due(lagging, HERE, vm) in (None, Event.FAILED), "somebody is at work, unless it is over"


async def test_only_what_no_row_wants_is_deleted(row: Sandbox) -> None:
    for vm in VM_STATES:
        assert unwanted(None, HERE, vm)
        assert unwanted(dataclasses.replace(row, state=State.DELETED), HERE, vm)
        assert unwanted(row, ELSEWHERE, vm)
        assert unwanted(dataclasses.replace(row, worker=None), HERE, vm)
        assert unwanted(dataclasses.replace(row, state=State.FAILED), HERE, vm) == (vm != "failed"), "keeps its reason"
        for state in LIVE | {State.DELETING}:
            assert not unwanted(dataclasses.replace(row, state=state), HERE, vm)


@given(facts=st.lists(st.sampled_from([*VM_STATES, None]), max_size=12))
def test_after_any_facts_a_row_agrees_with_the_last_or_has_failed(facts: list[VmState | None]) -> None:
    state = State.RUNNING
    for fact in facts:
        event = TOLD.get(state, {}).get(None if fact is None else State(fact))
        if event is not None:
            state = TRANSITIONS[state][event]
    told = [fact for fact in facts if fact not in ("creating", "deleting", "suspending", "restoring")]
    if state is State.FAILED:
        assert {"failed", None} & set(told)
    elif state is State.SUSPENDING:
        assert "suspended" in told, "left to reconciling"
    elif told:
        assert str(state) == told[-1]


def test_the_tables_cover_each_combination() -> None:
    for state, fact in itertools.product((State.RUNNING, State.PAUSED), ("running", "paused", "failed", None)):
        same = fact == state
        assert ((None if fact is None else State(fact)) in TOLD[state]) != same
