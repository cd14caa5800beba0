"""A sandbox's life as data.

`TRANSITIONS` is the only statement of which state follows which; the SQL check constraint, the diagram in
ARCHITECTURE.md and the tests are made from it.

    creating --started--> running --paused--> paused --resumed--> running
    running, paused --suspend_begun--> suspending --suspended--> suspended | --suspend_failed--> running
    suspended --restore_begun--> restoring --restored--> running | --restore_failed--> suspended
    whatever lives --failed--> failed
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
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESTORING = "restoring"
    FAILED = "failed"
    DELETING = "deleting"
    DELETED = "deleted"


class Event(enum.StrEnum):
    """What can happen to it."""

    STARTED = "started"
    PAUSED = "paused"
    RESUMED = "resumed"
    SUSPEND_BEGUN = "suspend_begun"
    SUSPENDED = "suspended"
    SUSPEND_FAILED = "suspend_failed"
    RESTORE_BEGUN = "restore_begun"
    RESTORED = "restored"
    RESTORE_FAILED = "restore_failed"
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
        Event.SUSPEND_BEGUN: State.SUSPENDING,
        Event.FAILED: State.FAILED,
        Event.DELETE_ASKED: State.DELETING,
    },
    State.PAUSED: {
        Event.RESUMED: State.RUNNING,
        Event.SUSPEND_BEGUN: State.SUSPENDING,
        Event.FAILED: State.FAILED,
        Event.DELETE_ASKED: State.DELETING,
    },
    State.SUSPENDING: {
        Event.SUSPENDED: State.SUSPENDED,
        Event.SUSPEND_FAILED: State.RUNNING,
        Event.FAILED: State.FAILED,
        Event.DELETE_ASKED: State.DELETING,
    },
    State.SUSPENDED: {
        Event.RESTORE_BEGUN: State.RESTORING,
        Event.FAILED: State.FAILED,
        Event.DELETE_ASKED: State.DELETING,
    },
    State.RESTORING: {
        Event.RESTORED: State.RUNNING,
        Event.RESTORE_FAILED: State.SUSPENDED,
        Event.FAILED: State.FAILED,
        Event.DELETE_ASKED: State.DELETING,
    },
    State.FAILED: {Event.DELETE_ASKED: State.DELETING},
    State.DELETING: {Event.DELETED: State.DELETED},
    State.DELETED: {},
}

LIVE = frozenset(state for state, events in TRANSITIONS.items() if Event.FAILED in events)
"""States in which a worker may hold something of the sandbox: a VM, or its files on storage."""

TRANSIENT = frozenset({State.CREATING, State.SUSPENDING, State.RESTORING, State.DELETING})
"""States in which somebody is at work on it; a row in one of them is always reconciled further."""


class IllegalTransition(Exception):
    """This event cannot happen in this state."""


def advance(state: State, event: Event) -> State:
    """Return the state that follows `state` on `event`; raise IllegalTransition where there is none."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(f"{event} cannot happen to a sandbox that is {state}") from None
