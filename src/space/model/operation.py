"""A lifecycle change in progress, and what has happened to a sandbox."""

import dataclasses
import datetime
import enum
import hashlib
from collections.abc import Mapping

from space.model.errors import InvalidArgument, SpaceError, from_problem
from space.model.ids import OperationId, ProjectId, SandboxId


@dataclasses.dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What a client sends so that a repeated request is done once. `request_hash` covers what was asked."""

    text: str
    request_hash: str


_MAX_KEY = 255


def idempotency_key(text: str, asked: str) -> IdempotencyKey:
    """Return the key that a client sent with a request; raises InvalidArgument.

    `asked` is the request in a form that two texts of the same request have in common.
    """
    if not 0 < len(text) <= _MAX_KEY or not text.isascii() or not text.isprintable():
        raise InvalidArgument(f"Idempotency-Key must be 1 to {_MAX_KEY} printable ASCII characters.")
    return IdempotencyKey(text, hashlib.sha256(asked.encode()).hexdigest())


class OperationKind(enum.StrEnum):
    """What is being done."""

    CREATE = "create"
    FORK = "fork"
    PAUSE = "pause"
    RESUME = "resume"
    SUSPEND = "suspend"
    RESTORE = "restore"
    SNAPSHOT = "snapshot"
    DELETE = "delete"


WISHES = frozenset({OperationKind.PAUSE, OperationKind.RESUME, OperationKind.SUSPEND, OperationKind.RESTORE})
"""Those that a later wish can overtake."""


class OperationStatus(enum.StrEnum):
    """How far it is."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One call's lifecycle change; `error_*` are set when it failed.

    `generation` is that of the wish it wrote. `arguments` say what was asked where the row does not (the name
    of a snapshot), `result` what came of it where that is no sandbox (its digest).
    """

    id: OperationId
    project: ProjectId
    sandbox: SandboxId
    kind: OperationKind
    status: OperationStatus
    error_code: str | None
    error_detail: str | None
    created_at: datetime.datetime
    finished_at: datetime.datetime | None
    generation: int = 0
    arguments: Mapping[str, str | bool] = dataclasses.field(default_factory=dict)
    result: str | None = None

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
