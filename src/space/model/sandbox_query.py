"""Which sandboxes of a project a list shows, and in what order."""

import dataclasses
import datetime
from collections.abc import Mapping

from space.model.ids import TemplateDigest
from space.model.lifecycle import State

ALIVE = frozenset(State) - {State.DELETED}


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxQuery:
    """What must be true of a sandbox; newest first, or `oldest_first`.

    `labels`: all of them. `since`: made then or later. `template`: started from this one, or from the one that had its
    name then.
    """

    states: frozenset[State] = ALIVE
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    since: datetime.datetime | None = None
    template: tuple[TemplateDigest, str] | None = None
    oldest_first: bool = False
