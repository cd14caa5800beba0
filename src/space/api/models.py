"""What the `/v1` surface reads and writes."""

import datetime
from typing import Literal

import pydantic
from pydantic.config import JsonDict

from space.control.keys import LABEL, MAX_LABEL
from space.model.ids import TEMPLATE_NAME, ProjectId
from space.model.key import ApiKey
from space.model.lifecycle import State
from space.model.operation import Operation, OperationKind, OperationStatus, SandboxEvent
from space.model.sandbox import (
    DEFAULT_MEMORY_MIB,
    DEFAULT_VCPUS,
    MAX_LABEL_CHARS,
    MAX_LABELS,
    MAX_MEMORY_MIB,
    MAX_VCPUS,
    MIN_MEMORY_MIB,
    Sandbox,
)
from space.model.template import DEFAULT_DISK_MIB
from space.wire.worker import TemplateModel

_NO_NUL: JsonDict = {"type": "string", "pattern": "^[^\\x00]*$"}
# What check_spec enforces, as far as JSON Schema can say it.
_ENV: JsonDict = {"propertyNames": {"pattern": "^[^=\\x00]+$"}, "additionalProperties": _NO_NUL}
_LABELS: JsonDict = {
    "propertyNames": {"pattern": "^[^:\\x00]+$", "maxLength": MAX_LABEL_CHARS},
    "additionalProperties": _NO_NUL | {"maxLength": MAX_LABEL_CHARS},
    "maxProperties": MAX_LABELS,
}


class _Request(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class CreateSandbox(_Request):
    """A new sandbox; everything has a default."""

    template: str = pydantic.Field(default="base", description="Name or digest of a template.")
    vcpus: int = pydantic.Field(default=DEFAULT_VCPUS, ge=1, le=MAX_VCPUS)
    memory_mib: int = pydantic.Field(default=DEFAULT_MEMORY_MIB, ge=MIN_MEMORY_MIB, le=MAX_MEMORY_MIB)
    env: dict[str, str] = pydantic.Field(
        default={}, description="Environment of every command in it, 64 KiB at most.", json_schema_extra=_ENV
    )
    labels: dict[str, str] = pydantic.Field(default={}, description="For finding it again.", json_schema_extra=_LABELS)


class CreateTemplate(_Request):
    """A template to build."""

    name: str = pydantic.Field(description="The name that points to it afterwards.", pattern=f"^{TEMPLATE_NAME}$")
    recipe: Literal["base"] = "base"
    disk_mib: int = pydantic.Field(default=DEFAULT_DISK_MIB, ge=1024, le=1024 * 1024, description="Size of its disk.")
    force: bool = pydantic.Field(default=False, description="Build again although nothing has changed.")


class CreateKey(_Request):
    """A new API key."""

    label: str = pydantic.Field(max_length=MAX_LABEL, pattern=LABEL, description="What it is for; one line.")


class SandboxModel(pydantic.BaseModel):
    """A sandbox. `reason` says why it is in its state where that is not plain; `timings_ms` are its start's steps."""

    id: str
    state: State
    reason: str | None
    template: str
    template_digest: str
    vcpus: int
    memory_mib: int
    labels: dict[str, str]
    worker: str | None
    timings_ms: dict[str, float]
    created_at: datetime.datetime
    updated_at: datetime.datetime
    started_at: datetime.datetime | None

    @classmethod
    def of(cls, sandbox: Sandbox) -> "SandboxModel":
        """Return what a client may see: neither the environment, which may hold secrets, nor the agent's token."""
        return cls(
            id=sandbox.id,
            state=sandbox.state,
            reason=sandbox.reason,
            template=sandbox.spec.template_name,
            template_digest=sandbox.spec.template,
            vcpus=sandbox.spec.vcpus,
            memory_mib=sandbox.spec.memory_mib,
            labels=dict(sandbox.spec.labels),
            worker=sandbox.worker,
            timings_ms=dict(sandbox.timings_ms),
            created_at=sandbox.created_at,
            updated_at=sandbox.updated_at,
            started_at=sandbox.started_at,
        )


class SandboxList(pydantic.BaseModel):
    """A page, newest first. `next_cursor` gets the next one; null at the end."""

    sandboxes: list[SandboxModel]
    next_cursor: str | None


class OperationError(pydantic.BaseModel):
    """Why an operation failed; the same `code` and `detail` that a waiting caller gets."""

    code: str
    detail: str


class OperationModel(pydantic.BaseModel):
    """A lifecycle change in progress."""

    id: str
    sandbox_id: str
    kind: OperationKind
    status: OperationStatus
    error: OperationError | None
    created_at: datetime.datetime
    finished_at: datetime.datetime | None

    @classmethod
    def of(cls, operation: Operation) -> "OperationModel":
        """Return the public form."""
        error = operation.error
        return cls(
            id=operation.id,
            sandbox_id=operation.sandbox,
            kind=operation.kind,
            status=operation.status,
            error=None if error is None else OperationError(code=error.slug, detail=str(error)),
            created_at=operation.created_at,
            finished_at=operation.finished_at,
        )


class EventModel(pydantic.BaseModel):
    """Something that happened to a sandbox. `sequence` counts from 1."""

    sequence: int
    at: datetime.datetime
    type: str
    from_state: str | None
    state: str
    reason: str | None

    @classmethod
    def of(cls, event: SandboxEvent) -> "EventModel":
        """Return the public form."""
        return cls(**{name: getattr(event, name) for name in cls.model_fields})


class EventList(pydantic.BaseModel):
    """Events, oldest first. Ask again with `after` = the last `sequence`."""

    events: list[EventModel]


class TemplateList(pydantic.BaseModel):
    """The project's templates, newest first."""

    templates: list[TemplateModel]


class KeyModel(pydantic.BaseModel):
    """An API key without its text."""

    id: str
    project: ProjectId
    label: str
    created_at: datetime.datetime
    last_used_at: datetime.datetime | None
    revoked_at: datetime.datetime | None

    @classmethod
    def of(cls, key: ApiKey) -> "KeyModel":
        """Return the public form."""
        return cls(**{name: getattr(key, name) for name in cls.model_fields})


class NewKey(KeyModel):
    """A key that was just made: the only time its text is shown."""

    key: str


class KeyList(pydantic.BaseModel):
    """The project's keys, revoked ones too."""

    keys: list[KeyModel]
