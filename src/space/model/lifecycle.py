"""A sandbox's life as data.

`TRANSITIONS` is the only statement of which state follows which; the SQL check constraint, the diagram in
ARCHITECTURE.md and the tests are made from it.

    creating --started--> running --paused--> paused --resumed--> running
    creating, running, paused --failed--> failed
    any --delete_asked--> deleting --deleted--> deleted

`running` means that the agent answered through the data path. `failed` carries a reason and holds no host resources;
nothing ever leaves it but deletion, so a dead VM is never silently replaced by a fresh one.
"""

import enum


class State(enum.StrEnum):
    """Where a sandbox is."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    DELETING = "deleting"
    DELETED = "deleted"


class Event(enum.StrEnum):
    """What can happen to it."""

    STARTED = "started"
    PAUSED = "paused"
    RESUMED = "resumed"
    FAILED = "failed"
    DELETE_ASKED = "delete_asked"
    DELETED = "deleted"


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.CREATING: {
        Event.STARTED: State.RUNNING,
        Event.FAILED: State.FAILED,
        Event.DELETE_ASKED: State.DELETING,
    },
    State.RUNNING: {
        Event.PAUSED: State.PAUSED,
        Event.FAILED: State.FAILED,
        Event.DELETE_ASKED: State.DELETING,
    },
    State.PAUSED: {
        Event.RESUMED: State.RUNNING,
        Event.FAILED: State.FAILED,
        Event.DELETE_ASKED: State.DELETING,
    },
    State.FAILED: {Event.DELETE_ASKED: State.DELETING},
    State.DELETING: {Event.DELETED: State.DELETED},
    State.DELETED: {},
}

LIVE = frozenset({State.CREATING, State.RUNNING, State.PAUSED})
"""States in which a worker may hold a VM for the sandbox."""


class IllegalTransition(Exception):
    """This event cannot happen in this state."""


def advance(state: State, event: Event) -> State:
    """Return the state that follows `state` on `event`; raise IllegalTransition where there is none."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(f"{event} cannot happen to a sandbox that is {state}") from None
