"""What `space doctor` says of one thing: how bad, what was found, and the cure."""

import dataclasses
import enum


class Level(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    HINT = "hint"
    BLOCKER = "blocker"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """`cure` is empty where nothing is wrong."""

    level: Level
    what: str
    found: str
    cure: str = ""


def needed(what: str, found: str, good: bool, cure: str) -> Finding:
    """Return what blocks SPACE unless it is `good`."""
    return Finding(Level.OK, what, found) if good else Finding(Level.BLOCKER, what, found, cure)


def wanted(what: str, found: str, good: bool, cure: str) -> Finding:
    """Return what SPACE can do without, at a price that the cure names."""
    return Finding(Level.OK, what, found) if good else Finding(Level.HINT, what, found, cure)
