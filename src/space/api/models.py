"""What the `/v1` surface reads and writes."""

import datetime

import pydantic
from pydantic.config import JsonDict

from space.api.policy_schema import POLICY
from space.control.clock import Clock
from space.control.forks import Child
from space.control.keys import LABEL, MAX_LABEL
from space.control.lifecycle import Changes, Keep
from space.control.traffic import traffic_token
from space.model.ids import TEMPLATE_NAME, ProjectId
from space.model.key import ApiKey
from space.model.lifecycle import State
from space.model.operation import Operation, OperationKind, OperationStatus, SandboxEvent
from space.model.sandbox import (
    DEFAULT_IDLE_TIMEOUT_S,
    DEFAULT_MEMORY_MIB,
    DEFAULT_VCPUS,
    MAX_FORKS,
    MAX_LABEL_CHARS,
    MAX_LABELS,
    MAX_MEMORY_MIB,
    MAX_TIMEOUT_S,
    MAX_VCPUS,
    MIN_MEMORY_MIB,
    Deadlines,
    OnTimeout,
    Sandbox,
    check_short_labels,
)
from space.model.template import DEFAULT_DISK_MIB, Template, TemplateKind
from space.model.volume import MAX_MOUNTS, NAME
from space.wire.templates import TemplateModel
from space.wire.worker import UsageSample

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


_IDLE = "Suspended after this long without use, in seconds; null: never."
_TIMEOUT = "Ends this many seconds from now, whatever goes on in it; null: never."
_ON_TIMEOUT = "What happens then."
_PUBLIC_PORTS = "Its servers need neither a key nor the traffic token (docs/howto/domains-and-tls.md)."
_AUTO_RESUME = "A request to its commands or files wakes it where it is suspended or paused."


class VolumeMount(_Request):
    """A volume, by its name, and where it is mounted in the sandbox."""

    name: str = pydantic.Field(pattern=f"^{NAME}$")
    path: str = pydantic.Field(min_length=2, max_length=1024, description="An absolute path; made where it is missing.")


class CreateSandbox(_Request):
    """A new sandbox; everything has a default."""

    template: str = pydantic.Field(default="base", description="Name or digest of a template or snapshot.")
    vcpus: int | None = pydantic.Field(
        default=None, ge=1, le=MAX_VCPUS, description=f"Default: the snapshot's, else {DEFAULT_VCPUS}."
    )
    memory_mib: int | None = pydantic.Field(
        default=None,
        ge=MIN_MEMORY_MIB,
        le=MAX_MEMORY_MIB,
        description=f"Default: the snapshot's, else {DEFAULT_MEMORY_MIB}.",
    )
    env: dict[str, str] = pydantic.Field(
        default={}, description="Environment of every command in it, 64 KiB at most.", json_schema_extra=_ENV
    )
    labels: dict[str, str] = pydantic.Field(default={}, description="For finding it again.", json_schema_extra=_LABELS)
    idle_timeout_s: int | None = pydantic.Field(
        default=DEFAULT_IDLE_TIMEOUT_S, ge=1, le=MAX_TIMEOUT_S, description=_IDLE
    )
    timeout_s: int | None = pydantic.Field(default=None, ge=1, le=MAX_TIMEOUT_S, description=_TIMEOUT)
    on_timeout: OnTimeout = pydantic.Field(default=OnTimeout.DELETE, description=_ON_TIMEOUT)
    auto_resume: pydantic.StrictBool = pydantic.Field(default=True, description=_AUTO_RESUME)
    public_ports: pydantic.StrictBool = pydantic.Field(default=False, description=_PUBLIC_PORTS)
    volumes: list[VolumeMount] = pydantic.Field(
        default=[], max_length=MAX_MOUNTS, description="Volumes of the project to mount."
    )
    policy: dict[str, object] | None = pydantic.Field(
        default=None,
        min_length=1,
        description="What may leave it (docs/howto/egress.md); left out: nothing.",
        json_schema_extra={"anyOf": [POLICY, {"type": "null"}]},
    )

    @pydantic.field_validator("labels")
    @classmethod
    def _check_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        check_short_labels(labels)
        return labels

    def deadlines(self) -> Deadlines:
        """Return its deadlines."""
        return Deadlines(self.idle_timeout_s, self.timeout_s, self.on_timeout, self.auto_resume)


class ChangeSandbox(_Request):
    """What changes; a field that is left out stays as it is. A `timeout_s` counts from now."""

    labels: dict[str, str] | None = pydantic.Field(
        default=None, description="All of them, in place of those before.", json_schema_extra=_LABELS
    )
    idle_timeout_s: int | None = pydantic.Field(default=None, ge=1, le=MAX_TIMEOUT_S, description=_IDLE)
    timeout_s: int | None = pydantic.Field(default=None, ge=1, le=MAX_TIMEOUT_S, description=_TIMEOUT)
    on_timeout: OnTimeout | None = pydantic.Field(default=None, description=_ON_TIMEOUT)
    auto_resume: pydantic.StrictBool | None = pydantic.Field(default=None, description=_AUTO_RESUME)

    @pydantic.field_validator("labels")
    @classmethod
    def _check_labels(cls, labels: dict[str, str] | None) -> dict[str, str] | None:
        check_short_labels(labels or {})
        return labels

    def changes(self) -> Changes:
        """Return them for the use case."""
        given = self.model_fields_set
        return Changes(
            labels=self.labels,
            idle_timeout_s=self.idle_timeout_s if "idle_timeout_s" in given else Keep.KEEP,
            timeout_s=self.timeout_s if "timeout_s" in given else Keep.KEEP,
            on_timeout=self.on_timeout,
            auto_resume=self.auto_resume,
        )


class SuspendSandbox(_Request):
    """How to suspend."""

    memory: pydantic.StrictBool = pydantic.Field(
        default=True, description="false: keep the disk only; what runs ends, and restoring boots again."
    )


class ForkSandbox(ChangeSandbox):
    """Copies of a sandbox. What is left out is as in the original."""

    count: int = pydantic.Field(default=1, ge=1, le=MAX_FORKS, description="How many.")
    env: dict[str, str] = pydantic.Field(
        default={}, description="Added to the environment of the original.", json_schema_extra=_ENV
    )


class TakeSnapshot(_Request):
    """A snapshot to take."""

    name: str | None = pydantic.Field(
        default=None, pattern=f"^{TEMPLATE_NAME}$", description="Points to it afterwards; left out, one is made up."
    )
    memory: pydantic.StrictBool = pydantic.Field(default=True, description="false: of the disk only.")


class CreateTemplate(_Request):
    """A template to build."""

    name: str = pydantic.Field(description="The name that points to it afterwards.", pattern=f"^{TEMPLATE_NAME}$")
    recipe: str | None = pydantic.Field(
        default=None,
        pattern=f"^{TEMPLATE_NAME}$",
        description="What it is made of: `base`, `code-interpreter-v1`. Left out, the recipe of the name, else `base`.",
    )
    disk_mib: int = pydantic.Field(default=DEFAULT_DISK_MIB, ge=1024, le=1024 * 1024, description="Size of its disk.")
    force: bool = pydantic.Field(default=False, description="Build again although nothing has changed.")


class CreateKey(_Request):
    """A new API key."""

    label: str = pydantic.Field(max_length=MAX_LABEL, pattern=LABEL, description="What it is for; one line.")


_IN_USE = datetime.timedelta(seconds=2)
"""Used this short a time ago counts as in use: when exactly is written once a second."""


class SandboxModel(pydantic.BaseModel):
    """A sandbox. `reason` says why it is in its state where that is not plain; `timings_ms` are its start's steps.

    `idle_since`: as far as requests tell; what runs in it is asked for before it is suspended. `expires_at`: when
    `on_timeout` happens. `durable_at`: when its last suspension was safe on storage. `traffic_token`: lets requests in
    to its servers' ports, and to nothing else of it; null once it is deleted.
    """

    id: str
    state: State
    reason: str | None
    template: str
    template_digest: str
    vcpus: int
    memory_mib: int
    labels: dict[str, str]
    parent: str | None
    worker: str | None
    timings_ms: dict[str, float]
    created_at: datetime.datetime
    updated_at: datetime.datetime
    started_at: datetime.datetime | None
    idle_timeout_s: int | None
    timeout_s: int | None
    on_timeout: OnTimeout
    auto_resume: bool
    public_ports: bool
    traffic_token: str | None
    volumes: list[VolumeMount]
    last_active_at: datetime.datetime
    idle_since: datetime.datetime | None
    expires_at: datetime.datetime | None
    durable_at: datetime.datetime | None

    @classmethod
    def of(cls, sandbox: Sandbox, clock: Clock) -> "SandboxModel":
        """Return what a client may see: neither the environment, which may hold secrets, nor the agent's token."""
        spec, awake = sandbox.spec, sandbox.state in (State.RUNNING, State.PAUSED)
        idle = awake and clock.now() - sandbox.last_active_at > _IN_USE
        last_active_at = clock.shown(sandbox.last_active_at)
        assert last_active_at is not None
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
            parent=spec.parent,
            idle_timeout_s=spec.deadlines.idle_timeout_s,
            timeout_s=spec.deadlines.timeout_s,
            on_timeout=spec.deadlines.on_timeout,
            auto_resume=spec.deadlines.auto_resume,
            public_ports=spec.public_ports,
            traffic_token=traffic_token(spec.agent_token) if spec.agent_token else None,
            volumes=[VolumeMount(name=mount.name, path=mount.path) for mount in spec.volumes],
            last_active_at=last_active_at,
            idle_since=last_active_at if idle else None,
            expires_at=clock.shown(sandbox.expires_at),
            durable_at=sandbox.durable_at,
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
    """A lifecycle change in progress. `result` is the digest of a snapshot that was taken."""

    id: str
    sandbox_id: str
    kind: OperationKind
    status: OperationStatus
    error: OperationError | None
    created_at: datetime.datetime
    finished_at: datetime.datetime | None
    result: str | None

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
            result=operation.result,
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


class UsageModel(pydantic.BaseModel):
    """What a sandbox used at a moment. The processors' share is of all of them, since the sample before."""

    at: datetime.datetime
    cpu_count: int
    cpu_used_percent: float
    memory_total_bytes: int
    memory_used_bytes: int
    memory_cache_bytes: int
    disk_total_bytes: int
    disk_used_bytes: int

    @classmethod
    def of(cls, sample: UsageSample) -> "UsageModel":
        """Return the public form."""
        return cls(
            at=sample.at,
            cpu_count=sample.cpu_count,
            cpu_used_percent=sample.cpu_used_pct,
            memory_total_bytes=sample.mem_total,
            memory_used_bytes=sample.mem_used,
            memory_cache_bytes=sample.mem_cache,
            disk_total_bytes=sample.disk_total,
            disk_used_bytes=sample.disk_used,
        )


class UsageList(pydantic.BaseModel):
    """Samples of the last hour, oldest first, one each ten seconds while it runs, and one of now."""

    samples: list[UsageModel]


class ForkedSandbox(pydantic.BaseModel):
    """What became of one copy: the sandbox, or why there is none; with `wait=0` only the operation."""

    operation: OperationModel
    sandbox: SandboxModel | None
    error: OperationError | None

    @classmethod
    def of(cls, child: Child, clock: Clock) -> "ForkedSandbox":
        """Return the public form."""
        return cls(
            operation=OperationModel.of(child.operation),
            sandbox=None if child.sandbox is None else SandboxModel.of(child.sandbox, clock),
            error=None if child.error is None else OperationError(code=child.error.slug, detail=str(child.error)),
        )


class ForkResults(pydantic.BaseModel):
    """One result for each copy that was asked for."""

    results: list[ForkedSandbox]


class ShownTemplate(TemplateModel):
    """A template. A snapshot tells what it was taken of, whether it holds memory, and the size that goes with it."""

    kind: TemplateKind
    sandbox: str | None
    memory: bool
    vcpus: int | None
    memory_mib: int | None

    @classmethod
    def of(cls, template: Template) -> "ShownTemplate":
        """Return the public form."""
        return cls(**{name: getattr(template, name) for name in cls.model_fields})


class TemplateList(pydantic.BaseModel):
    """The project's templates, newest first."""

    templates: list[ShownTemplate]


class SnapshotList(pydantic.BaseModel):
    """The project's snapshots, newest first."""

    snapshots: list[ShownTemplate]


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
