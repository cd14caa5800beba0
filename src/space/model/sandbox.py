"""What a sandbox is: the wish (`SandboxSpec`), what is true (`Sandbox`), and the limits of both."""

import dataclasses
import datetime
import enum
from collections.abc import Mapping

from space.model.errors import InvalidArgument
from space.model.ids import ProjectId, SandboxId, TemplateDigest, WorkerId
from space.model.lifecycle import State

DEFAULT_VCPUS, MAX_VCPUS = 1, 8
DEFAULT_MEMORY_MIB, MIN_MEMORY_MIB, MAX_MEMORY_MIB = 512, 128, 16384
MAX_ENV_BYTES = 64 * 1024
MAX_LABELS, MAX_LABEL_CHARS = 64, 256


class Desired(enum.StrEnum):
    """What the client wants of a sandbox."""

    RUNNING = "running"
    DELETED = "deleted"


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The wish; only API use cases write it, and each write raises the row's generation.

    `agent_token` is what the edge shows the agent for this sandbox; clients never see it on the `/v1` surface.
    """

    template: TemplateDigest
    template_name: str
    vcpus: int
    memory_mib: int
    env: Mapping[str, str]
    labels: Mapping[str, str]
    agent_token: str = dataclasses.field(repr=False)
    desired: Desired = Desired.RUNNING


@dataclasses.dataclass(frozen=True, slots=True)
class Sandbox:
    """One row: the spec, and the status that only reconciling writes.

    `timings_ms` holds the measured steps of its creation (`boot`, `agent`, `total`); empty before it ran.
    `reason` says why it is in its state where that is not plain: the failure, `disk_full`.
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
    if len(labels) > MAX_LABELS:
        raise InvalidArgument(f"labels: at most {MAX_LABELS}; got {len(labels)}.")
    for name, value in labels.items():
        if ":" in name:
            raise InvalidArgument(f"labels: {name[:40]!r}: no ':' in a name; lists are asked for as ?label=name:value.")
        if not name or "\0" in name + value or max(len(name), len(value)) > MAX_LABEL_CHARS:
            raise InvalidArgument(
                f"labels: {name[:40]!r}: name and value have at most {MAX_LABEL_CHARS} characters, no NUL."
            )
