"""What is due for a sandbox, checked against every order of wishes, crashes and answers of a worker.

The machine below does what reconciling does, one piece at a time, over the same pure functions; any piece may be the
last one before a crash, and any answer of the worker may be lost.
"""

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from space.model.convergence import (
    REFUSES,
    SATISFIES,
    TOLD,
    WITHDRAWN,
    Step,
    answers,
    due,
    outcome,
    told,
)
from space.model.lifecycle import TRANSIENT, TRANSITIONS, Event, State, advance
from space.model.operation import WISHES, OperationKind
from space.model.sandbox import Desired

_KINDS = {
    OperationKind.PAUSE: Desired.PAUSED,
    OperationKind.RESUME: Desired.RUNNING,
    OperationKind.SUSPEND: Desired.SUSPENDED,
    OperationKind.DELETE: Desired.DELETED,
}
_DONE = {
    Step.START: State.RUNNING,
    Step.PAUSE: State.PAUSED,
    Step.RESUME: State.RUNNING,
    Step.SUSPEND: State.SUSPENDED,
    Step.RESTORE: State.RUNNING,
    Step.DELETE: None,
}
_SERVES = {
    Step.START: set(Desired),
    Step.PAUSE: {Desired.PAUSED},
    Step.RESUME: {Desired.RUNNING},
    Step.SUSPEND: {Desired.SUSPENDED},
    Step.RESTORE: {Desired.RUNNING, Desired.PAUSED},
    Step.DELETE: set[Desired](),
}
"""Which wishes a step that is refused may end; the others are carried out all the same."""
_BEGINS = {Step.SUSPEND: Event.SUSPEND_BEGUN, Step.RESTORE: Event.RESTORE_BEGUN}


@dataclasses.dataclass
class Row:
    """What counts of a row."""

    state: State = State.CREATING
    desired: Desired = Desired.RUNNING
    generation: int = 1
    observed: int = 0


class Life(RuleBasedStateMachine):
    """One sandbox and its worker."""

    def __init__(self) -> None:
        super().__init__()
        self.row = Row()
        self.worker: State | None = None
        self.calls: dict[tuple[OperationKind, int], str] = {(OperationKind.CREATE, 1): "running"}
        self.attempt: tuple[Step, Desired, int] | None = None
        self.restores = 0
        self.excused = False
        """Whether something has gone wrong for the last wish."""

        self.mortal = True

    @initialize(mortal=st.booleans())
    def be(self, *, mortal: bool) -> None:
        """In half of the lives nothing ends it early."""
        self.mortal = mortal

    # the rows, as the store keeps them

    @property
    def settled(self) -> bool:
        return self.row.observed >= self.row.generation and self.row.state not in TRANSIENT

    def happen(self, event: Event, desired: Desired, generation: int, back_to: Desired | None = None) -> None:
        state = advance(self.row.state, event)
        self.row.state = state
        answered = answers(desired, event, state)
        self.row.observed = generation if answered else min(self.row.observed, generation - 1)
        if answered and generation == self.row.generation:
            self.row.desired = back_to or WITHDRAWN.get(event, self.row.desired)
        satisfied = SATISFIES.get(state, frozenset())
        self.settle(satisfied, REFUSES.get(event, frozenset()) - satisfied, generation)

    def settle(self, satisfied: frozenset[OperationKind], refused: frozenset[OperationKind], generation: int) -> None:
        for (kind, asked), status in self.calls.items():
            if status == "running" and kind in satisfied:
                self.calls[kind, asked] = "succeeded"
            elif status == "running" and kind in refused and asked <= generation:
                self.calls[kind, asked] = "failed"
        if self.settled and refused != WISHES:
            self.settle(frozenset(), WISHES, self.row.generation)

    # what clients do

    @precondition(lambda self: self.row.desired is not Desired.DELETED and self.row.state is not State.FAILED)
    @rule(kind=st.sampled_from(sorted(_KINDS)))
    def wish(self, kind: OperationKind) -> None:
        desired = _KINDS[kind]
        if desired is Desired.DELETED and not self.mortal:
            return
        if self.row.desired is desired and str(self.row.state) == desired and self.settled:
            return
        self.row.desired = desired
        self.row.generation += 1
        self.calls[kind, self.row.generation] = "running"
        self.excused = False
        if desired is Desired.DELETED:
            self.attempt = None  # overtaken

    # what reconciling does, and where it can be cut off

    @precondition(lambda self: self.attempt is None and not self.settled)
    @rule()
    def begin(self) -> None:
        row = self.row
        step = due(row.desired, row.state)
        if step is None:
            row.observed = row.generation
            satisfied = SATISFIES.get(row.state, frozenset())
            refused = REFUSES[Event.FAILED] if row.state is State.FAILED else frozenset()
            self.settle(satisfied, refused, row.generation)
            return
        begun = _BEGINS.get(step) if row.state not in TRANSIENT else None
        if step is Step.DELETE and row.state is not State.DELETING:
            begun = Event.DELETE_ASKED
        if begun is not None:
            self.happen(begun, row.desired, row.generation)
        self.attempt = (step, row.desired, row.generation)

    @precondition(lambda self: self.attempt is not None)
    @rule(what=st.sampled_from(["done", "refused", "lost before", "lost after", "died"]))
    def call(self, what: str) -> None:
        assert self.attempt is not None
        step, desired, generation = self.attempt
        what = what if self.mortal or what != "died" else "done"
        what = what if self.mortal or step is not Step.START else "done"
        self.attempt = None
        if what == "died" or (what == "refused" and generation == self.row.generation and desired in _SERVES[step]):
            self.excused = True
        if what == "died" and self.worker in (State.RUNNING, State.PAUSED):
            self.worker = State.FAILED
        elif what in ("done", "lost after") and self.worker is not State.FAILED:
            if step is Step.RESTORE and self.worker is State.SUSPENDED:
                self.restores += 1
            self.worker = _DONE[step]
        elif step is Step.DELETE and what != "lost before":
            self.worker = None
        if what.startswith("lost") or (step is Step.DELETE and self.worker is not None):
            return
        self.leave(step, desired, generation, refused=what == "refused")

    def leave(self, step: Step, desired: Desired, generation: int, *, refused: bool) -> None:
        state = self.row.state
        if step is Step.DELETE:
            self.happen(Event.DELETED, desired, generation)
        elif step is Step.START:
            event = outcome(state, self.worker)
            self.happen(Event.FAILED if event is None else event, desired, generation)
        elif step in _BEGINS:
            event = outcome(state, self.worker)
            assert event is not None, "a worker that has answered is done"
            stands = event is Event.SUSPEND_FAILED and self.worker is State.PAUSED
            self.happen(event, desired, generation, Desired.PAUSED if stands else None)
            if stands and self.settled:
                self.happen(Event.PAUSED, self.row.desired, self.row.generation)
        elif self.worker in (None, State.FAILED):
            self.happen(Event.FAILED, desired, generation)
        elif (refused and self.worker is not _DONE[step]) or str(state) == str(_DONE[step]):
            self.row.observed = generation
            refused = refused and self.worker is not _DONE[step]
            if refused and step is Step.PAUSE and generation == self.row.generation:
                self.row.desired = Desired.RUNNING
            if refused and step is Step.RESUME and state is State.PAUSED and generation == self.row.generation:
                self.row.desired = Desired.PAUSED
            if refused:
                self.settle(frozenset(), WISHES, generation)
            else:
                self.settle(SATISFIES[state], frozenset(), generation)
        else:
            self.happen({Step.PAUSE: Event.PAUSED, Step.RESUME: Event.RESUMED}[step], desired, generation)

    # what happens by itself

    @precondition(lambda self: self.mortal and self.worker in (State.RUNNING, State.PAUSED))
    @rule()
    def vm_dies(self) -> None:
        self.worker = State.FAILED
        self.excused = True

    @rule()
    def watch(self) -> None:
        event = told(self.row.state, self.worker)
        if event is None or self.row.desired is Desired.DELETED or not (self.settled or event is Event.FAILED):
            return
        self.attempt = None if event is Event.FAILED else self.attempt
        self.happen(event, self.row.desired, self.row.generation)

    # what must be so

    @invariant()
    def settled_is_true(self) -> None:
        if self.settled and self.row.state in (State.SUSPENDED, State.PAUSED):
            assert self.worker in (self.row.state, State.RUNNING, State.FAILED)
        if self.settled and self.row.state is not State.FAILED and not self.excused:
            last = max(self.calls, key=lambda call: call[1])
            assert self.calls[last] == "succeeded", "no wish is dropped"
        if self.settled:
            assert "running" not in self.calls.values(), "nobody waits for a row that is done"

    @invariant()
    def one_wish_restores_once(self) -> None:
        assert self.restores <= sum(kind in (OperationKind.RESUME, OperationKind.PAUSE) for kind, _ in self.calls)

    def teardown(self) -> None:
        """Whatever has happened: left alone with a worker that answers, the row comes to rest and tells the truth."""
        self.attempt = None
        for _ in range(20):
            self.watch()
            if self.settled:
                break
            self.begin()
            if self.attempt is not None:
                self.call("done")
        assert self.settled
        assert self.row.state not in TRANSIENT
        assert "running" not in self.calls.values()
        if self.row.state is State.FAILED:
            assert self.worker in (None, State.FAILED)
        elif self.row.state is State.DELETED:
            assert self.worker is None
        else:
            assert self.worker is self.row.state
            # a resume that was refused leaves it paused, and its caller told
            refused = self.excused and (self.row.desired, self.row.state) == (Desired.RUNNING, State.PAUSED)
            assert refused or str(self.row.state) == str(self.row.desired)
        if (OperationKind.DELETE, self.row.generation) in self.calls:
            assert self.row.state is State.DELETED, "a delete always wins"


def test_a_sandbox_comes_to_rest_where_the_last_wish_said() -> None:
    run_state_machine_as_test(Life, settings=settings(max_examples=2000, stateful_step_count=30, deadline=None))


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("desired", Desired)
def test_steps_lead_to_every_wish_from_every_state(state: State, desired: Desired) -> None:
    for _ in range(4):
        step = due(desired, state)
        if step is None:
            break
        done = _DONE[step] or State.DELETED
        if done is state:
            break  # told again; the state stays
        state = done
    if state is State.FAILED:
        assert desired is not Desired.DELETED
    elif desired is Desired.DELETED or state is State.DELETED:
        assert state is State.DELETED
    else:
        assert str(state) == str(desired)


@pytest.mark.parametrize("state", [State.SUSPENDING, State.RESTORING])
def test_what_a_worker_says_ends_a_transition_or_leaves_it(state: State) -> None:
    for truth in [*State, None]:
        event = outcome(state, truth)
        if event is None:
            assert truth in TRANSIENT | {State.DELETED}
        else:
            assert event in TRANSITIONS[state]


def test_what_is_told_can_happen() -> None:
    for state, events in TOLD.items():
        assert set(events.values()) <= set(TRANSITIONS[state])


def test_a_failure_answers_only_the_wish_that_it_was_tried_for() -> None:
    assert answers(Desired.SUSPENDED, Event.SUSPEND_FAILED, State.RUNNING)
    assert not answers(Desired.PAUSED, Event.SUSPEND_FAILED, State.RUNNING), "a pause was asked for meanwhile"
    assert answers(Desired.RUNNING, Event.RESTORE_FAILED, State.SUSPENDED)
    assert answers(Desired.PAUSED, Event.PAUSED, State.PAUSED)
    assert not answers(Desired.DELETED, Event.FAILED, State.FAILED), "it is still to be deleted"
    assert not answers(Desired.PAUSED, Event.RESUMED, State.RUNNING), "a fact that contradicts the wish"
