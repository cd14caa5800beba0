"""What is due for a sandbox: pure functions of its wish, its state and what its worker says.

Reconciling is a loop over them: `due` names the next step, `outcome` turns the worker's word into an event, `answers`
tells whether the status then answers the wish, `SATISFIES` and `REFUSES` which calls that leaves with an answer. Being
pure they are checked against every order of wishes, crashes and answers (tests/unit/test_model_convergence.py).
"""

import enum

from space.model.lifecycle import Event, State
from space.model.operation import OperationKind
from space.model.sandbox import Desired


class Step(enum.StrEnum):
    """What can be done at a worker."""

    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    SUSPEND = "suspend"
    RESTORE = "restore"
    DELETE = "delete"


_GO_ON: dict[State, Step] = {
    State.CREATING: Step.START,
    State.SUSPENDING: Step.SUSPEND,
    State.RESTORING: Step.RESTORE,
    State.DELETING: Step.DELETE,
}
"""What has begun is brought to an end first, whatever is wished now; but for a delete."""

_TOWARDS: dict[Desired, dict[State, Step]] = {
    # Told also to one that is running or paused already as far as the row knows: an earlier call may have been done
    # without the row hearing of it, and a VM that its worker paused (a full disk) would go on by itself.
    Desired.RUNNING: {State.RUNNING: Step.RESUME, State.PAUSED: Step.RESUME, State.SUSPENDED: Step.RESTORE},
    Desired.PAUSED: {State.RUNNING: Step.PAUSE, State.PAUSED: Step.PAUSE, State.SUSPENDED: Step.RESTORE},
    Desired.SUSPENDED: {State.RUNNING: Step.SUSPEND, State.PAUSED: Step.SUSPEND},
}


def due(desired: Desired, state: State) -> Step | None:
    """Return the next step for a row whose status does not answer its wish; None where nothing is left to do."""
    if desired is Desired.DELETED:
        return None if state is State.DELETED else Step.DELETE
    return _GO_ON.get(state) or _TOWARDS[desired].get(state)


_OUTCOMES: dict[State, dict[State, Event]] = {
    State.CREATING: {State.RUNNING: Event.STARTED, State.PAUSED: Event.STARTED},
    State.SUSPENDING: {
        State.SUSPENDED: Event.SUSPENDED,
        State.RUNNING: Event.SUSPEND_FAILED,
        State.PAUSED: Event.SUSPEND_FAILED,
        State.FAILED: Event.FAILED,
    },
    State.RESTORING: {
        State.RUNNING: Event.RESTORED,
        State.PAUSED: Event.RESTORED,
        State.SUSPENDED: Event.RESTORE_FAILED,
        State.FAILED: Event.FAILED,
    },
}


def outcome(state: State, truth: State | None) -> Event | None:
    """Return how a transition has ended, given what the worker holds (None: nothing); None where it has not ended."""
    if truth is None:
        return None if state is State.CREATING else Event.FAILED
    return _OUTCOMES[state].get(truth)


TOLD: dict[State, dict[State | None, Event]] = {
    State.RUNNING: {
        State.FAILED: Event.FAILED,
        None: Event.FAILED,
        State.PAUSED: Event.PAUSED,
        State.SUSPENDED: Event.SUSPEND_BEGUN,
    },
    State.PAUSED: {
        State.FAILED: Event.FAILED,
        None: Event.FAILED,
        State.RUNNING: Event.RESUMED,
        State.SUSPENDED: Event.SUSPEND_BEGUN,
    },
    State.SUSPENDED: {
        State.FAILED: Event.FAILED,
        None: Event.FAILED,
        State.RUNNING: Event.RESTORE_BEGUN,
        State.PAUSED: Event.RESTORE_BEGUN,
    },
}


def told(state: State, truth: State | None) -> Event | None:
    """Return what has happened to a row in `state` of which its worker now holds `truth`; None for nothing new.

    A row that is being worked on is left to whoever does that. Where the two contradict each other about suspension
    (a call was lost), the row goes into the transition, and reconciling finds out with calls that can be repeated.
    """
    return TOLD.get(state, {}).get(truth)


_ANSWERED_BY: dict[Event, tuple[Desired, ...]] = {
    Event.SUSPEND_FAILED: (Desired.SUSPENDED,),
    Event.RESTORE_FAILED: (Desired.RUNNING, Desired.PAUSED),
    Event.PAUSED: (Desired.RUNNING,),  # its worker paused it (a full disk), and lets it go on
}


WITHDRAWN: dict[Event, Desired] = {
    Event.SUSPEND_FAILED: Desired.RUNNING,
    Event.RESTORE_FAILED: Desired.SUSPENDED,
}
"""What the wish becomes when it has failed, so that the row does not go on wishing for what was refused."""


def answers(desired: Desired, event: Event, state: State) -> bool:
    """Tell whether a status that `event` has led to `state` answers the wish, so that nothing more is to be done.

    A failure is an answer: what was wished for is not tried again until it is wished again.
    """
    if desired is Desired.DELETED or state in (State.DELETING, State.DELETED):
        return state is State.DELETED
    return state is State.FAILED or str(state) == str(desired) or desired in _ANSWERED_BY.get(event, ())


PLAIN: dict[OperationKind, frozenset[State]] = {
    OperationKind.PAUSE: frozenset({State.RUNNING}),
    OperationKind.RESUME: frozenset({State.PAUSED, State.SUSPENDED}),
    OperationKind.RESTORE: frozenset({State.PAUSED, State.SUSPENDED}),
    OperationKind.SUSPEND: frozenset({State.RUNNING, State.PAUSED}),
}
"""From which states a call is plain, on a row whose status answers its wish.

It is not so already, nothing refuses it, and there is nothing under way to join: it only has to be wished.
"""


SATISFIES: dict[State, frozenset[OperationKind]] = {
    State.RUNNING: frozenset({OperationKind.CREATE, OperationKind.FORK, OperationKind.RESUME, OperationKind.RESTORE}),
    State.PAUSED: frozenset({OperationKind.PAUSE}),
    State.SUSPENDED: frozenset({OperationKind.SUSPEND}),
    State.DELETED: frozenset({OperationKind.DELETE}),
}
"""Which calls have what they asked for, once a sandbox is in a state."""

REFUSES: dict[Event, frozenset[OperationKind]] = {
    Event.SUSPEND_FAILED: frozenset({OperationKind.SUSPEND}),
    Event.RESTORE_FAILED: frozenset({OperationKind.RESUME, OperationKind.RESTORE, OperationKind.PAUSE}),
    Event.FAILED: frozenset(OperationKind) - {OperationKind.DELETE},
    Event.DELETE_ASKED: frozenset(OperationKind) - {OperationKind.DELETE},
}
"""Which calls an event ends with an error."""
