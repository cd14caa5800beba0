"""What a sandbox is: the wish (`SandboxSpec`), what is true (`Sandbox`), and the limits of both."""

import dataclasses
import datetime
import enum
from collections.abc import Mapping

from space.model.errors import InvalidArgument
from space.model.ids import ProjectId, SandboxId, TemplateDigest, WorkerId
from space.model.lifecycle import TRANSIENT, State
from space.model.volume import Mount

DEFAULT_VCPUS, MAX_VCPUS = 1, 8
DEFAULT_MEMORY_MIB, MIN_MEMORY_MIB, MAX_MEMORY_MIB = 512, 128, 16384
DEFAULT_IDLE_TIMEOUT_S = 6 * 3600
MAX_TIMEOUT_S = 366 * 24 * 3600
MIN_WOKEN_S = 300
"""A sandbox that a request woke has at least this long, so that who woke it can go on."""

MAX_FORKS = 20
MAX_ENV_BYTES = 64 * 1024
MAX_LABELS_BYTES = 64 * 1024
MAX_LABELS, MAX_LABEL_CHARS = 64, 256
"""Of labels on the `/v1` surface. Clients of E2B call them metadata, and put whole documents into them."""


class Desired(enum.StrEnum):
    """What the client wants of a sandbox."""

    RUNNING = "running"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    DELETED = "deleted"


class OnTimeout(enum.StrEnum):
    """What happens to a sandbox at its deadline."""

    DELETE = "delete"
    SUSPEND = "suspend"


@dataclasses.dataclass(frozen=True, slots=True)
class Deadlines:
    """When a sandbox is put away without being asked; durations in seconds, None means never.

    `idle_timeout_s`: suspended after this long without activity (docs/howto/idle-sandboxes.md says what counts).
    `timeout_s`: from its start, whatever goes on in it, `on_timeout` happens; 0 is at once.
    `auto_resume`: a request to it while it is suspended or paused wakes it first.
    `timeout_restarts`: the timeout does not run while it is suspended or paused; when it runs again, all of it begins
    anew, at least MIN_WOKEN_S where a request woke it.
    `timeout_memory`: a suspension by the timeout keeps the memory, else only the disk.
    """

    idle_timeout_s: int | None = DEFAULT_IDLE_TIMEOUT_S
    timeout_s: int | None = None
    on_timeout: OnTimeout = OnTimeout.DELETE
    auto_resume: bool = True
    timeout_restarts: bool = False
    timeout_memory: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The wish; only API use cases write it, and each write raises the row's generation.

    `agent_token` is what the edge shows the agent for this sandbox; clients never see it on the `/v1` surface.
    `parent` is the sandbox it is a fork of: it never starts from its template. `desired_reason` says why nobody's call
    wished this (`timeout`, idle). `suspend_memory` False: a suspension keeps the disk only.
    `public_ports`: its ports but the agent's are open to everybody. `mask_host`: the Host that its servers see in place
    of the one that was asked for, with `${PORT}` for the port. `e2b`: what a client of E2B said and reads back.
    `volumes` are mounted as long as it lives, in its forks too.
    """

    template: TemplateDigest
    template_name: str
    vcpus: int
    memory_mib: int
    env: Mapping[str, str]
    labels: Mapping[str, str]
    agent_token: str = dataclasses.field(repr=False)
    deadlines: Deadlines = Deadlines()
    parent: SandboxId | None = None
    desired: Desired = Desired.RUNNING
    desired_reason: str | None = None
    suspend_memory: bool = True
    public_ports: bool = False
    mask_host: str | None = None
    e2b: Mapping[str, object] | None = None
    volumes: tuple[Mount, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Sandbox:
    """One row: the spec, and the status that only reconciling writes.

    `timings_ms` holds the measured steps of its creation (`boot`, `agent`, `total`); empty before it ran.
    `reason` says why it is in its state where that is not plain: the failure, `disk_full`, `timeout`.
    `last_active_at`, `idle_at` and `expires_at` are by the steady clock (control/clock.py). `durable_at`: when its last
    suspension was safe on storage.
    """

    id: SandboxId
    project: ProjectId
    spec: SandboxSpec
    generation: int
    state: State
    observed_generation: int
    reason: str | None
    worker: WorkerId | None
    epoch: int
    timings_ms: Mapping[str, float]
    created_at: datetime.datetime
    updated_at: datetime.datetime
    started_at: datetime.datetime | None
    last_active_at: datetime.datetime
    idle_at: datetime.datetime | None
    expires_at: datetime.datetime | None
    durable_at: datetime.datetime | None

    @property
    def settled(self) -> bool:
        """Whether the status answers the wish."""
        return self.observed_generation >= self.generation and self.state not in TRANSIENT


def check_spec(vcpus: int, memory_mib: int, env: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """Raise InvalidArgument, naming the field, where a value is out of range or cannot be carried into a guest."""
    if not 1 <= vcpus <= MAX_VCPUS:
        raise InvalidArgument(f"vcpus must be 1 to {MAX_VCPUS}; got {vcpus}.")
    if not MIN_MEMORY_MIB <= memory_mib <= MAX_MEMORY_MIB:
        raise InvalidArgument(f"memory_mib must be {MIN_MEMORY_MIB} to {MAX_MEMORY_MIB}; got {memory_mib}.")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidArgument(
                f"env: {name!r} is not a name and value that a process can be given (no '=', no NUL)."
            )
    if sum(len(k.encode()) + len(v.encode()) for k, v in env.items()) > MAX_ENV_BYTES:
        raise InvalidArgument(f"env is over {MAX_ENV_BYTES} bytes in all; put large data into a file.")
    check_labels(labels)


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise InvalidArgument for what cannot be kept, whichever surface it comes from."""
    if sum(len(name.encode()) + len(value.encode()) for name, value in labels.items()) > MAX_LABELS_BYTES:
        raise InvalidArgument(f"labels (metadata) are over {MAX_LABELS_BYTES} bytes in all.")
    if any("\0" in name + value for name, value in labels.items()):
        raise InvalidArgument("labels (metadata): no NUL in a name or value.")


def check_short_labels(labels: Mapping[str, str]) -> None:
    """Raise InvalidArgument where there are too many, or one is no label as `/v1` has them."""
    if len(labels) > MAX_LABELS:
        raise InvalidArgument(f"labels: at most {MAX_LABELS}; got {len(labels)}.")
    for name, value in labels.items():
        if ":" in name:
            raise InvalidArgument(f"labels: {name[:40]!r}: no ':' in a name; lists are asked for as ?label=name:value.")
        if not name or "\0" in name + value or max(len(name), len(value)) > MAX_LABEL_CHARS:
            raise InvalidArgument(
                f"labels: {name[:40]!r}: name and value have at most {MAX_LABEL_CHARS} characters, no NUL."
            )


def check_deadlines(deadlines: Deadlines) -> None:
    """Raise InvalidArgument, naming the field, where a duration is out of range."""
    for name, least in (("idle_timeout_s", 1), ("timeout_s", 0)):
        value: int | None = getattr(deadlines, name)
        if value is not None and not least <= value <= MAX_TIMEOUT_S:
            raise InvalidArgument(f"{name} must be {least} to {MAX_TIMEOUT_S} seconds, or null for never; got {value}.")
