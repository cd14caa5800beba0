"""A lifecycle change in progress, and what has happened to a sandbox."""

import dataclasses
import datetime
import enum

from space.model.errors import SpaceError, from_problem
from space.model.ids import OperationId, ProjectId, SandboxId


class OperationKind(enum.StrEnum):
    """What is being done."""

    CREATE = "create"
    DELETE = "delete"


class OperationStatus(enum.StrEnum):
    """How far it is."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One call's lifecycle change; `error_*` are set when it failed."""

    id: OperationId
    project: ProjectId
    sandbox: SandboxId
    kind: OperationKind
    status: OperationStatus
    error_code: str | None
    error_detail: str | None
    created_at: datetime.datetime
    finished_at: datetime.datetime | None

    @property
    def error(self) -> SpaceError | None:
        """The error it ended with, as the caller who waits gets it."""
        if self.status is not OperationStatus.FAILED:
            return None
        return from_problem(self.error_code or "internal", self.error_detail or "It failed.")


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxEvent:
    """One line of a sandbox's record, numbered from 1 within the sandbox. `from_state` is None at its start."""

    sandbox: SandboxId
    sequence: int
    at: datetime.datetime
    type: str
    from_state: str | None
    state: str
    reason: str | None
