"""What the control side knows of a sandbox's egress: its policy and how far that is in force; what was decided."""

import dataclasses
import datetime
from collections.abc import Mapping

from space.model.ids import ProjectId, SandboxId, WorkerId
from space.model.lifecycle import State
from space.model.secret import Sealed

Document = Mapping[str, object]
"""A policy as JSON; see policy_document.py."""


@dataclasses.dataclass(frozen=True, slots=True)
class Generations:
    """Numbers of a sandbox's policy and of its secrets; each rises with every change."""

    policy: int
    secrets: int


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxEgress:
    """What may leave a sandbox. `ceiling` is its project's, None where there is none; `password` is its own, for its
    upstream proxy.

    `applied` is the highest generation that its worker is known to go by. One that has not begun, or is suspended, gets
    the newest when it starts.
    """

    sandbox: SandboxId
    project: ProjectId
    state: State
    worker: WorkerId | None
    document: Document
    secrets: tuple[str, ...]
    ceiling: Document | None
    generations: Generations
    applied: Generations
    password: Sealed | None = None

    @property
    def effective(self) -> dict[str, object]:
        """The policy with the ceiling in it, as the gateway decides by it."""
        return dict(self.document) if self.ceiling is None else {**self.document, "ceiling": self.ceiling}


@dataclasses.dataclass(frozen=True, slots=True)
class EgressRecord:
    """A stored event. `number` rises over all sandboxes; `event` is as the gateway told it."""

    number: int
    at: datetime.datetime
    event: Document
