"""The worker's API: HTTP over a unix socket, dialled by the control plane only.

Every call that changes something carries the `epoch` of the caller's lease on the row; the worker remembers the highest
it has seen for a sandbox and refuses a lower one with `stale`, so a controller that lost its lease cannot undo the work
of the one that took it. What may leave a sandbox, and the secrets for it, are ordered by generations of their own: a
lower one than the worker has is `stale`, the same one again is fine.

    GET    /v1/worker                 what this worker is and has
    PUT    /v1/sandboxes/{id}         make it run (idempotent; answers when its agent answered through the data path)
    GET    /v1/sandboxes              what it holds
    DELETE /v1/sandboxes/{id}?epoch=  end it and give everything back (idempotent; unknown ids too)
    POST   /v1/sandboxes/{id}/pause   stop its vCPUs; memory stays (idempotent)
    POST   /v1/sandboxes/{id}/resume  let them run, with the right clock (idempotent)
    POST   /v1/sandboxes/{id}/suspend put it to storage and end its VM (idempotent)
    POST   /v1/sandboxes/{id}/restore bring it back from there (idempotent; never starts anything else)
    POST   /v1/sandboxes/{id}/fork    start copies of it; it goes on
    POST   /v1/sandboxes/{id}/snapshots  freeze a copy as a template; it goes on
    GET    /v1/sandboxes/{id}/activity   what is going on in it, for idle time
    GET    /v1/sandboxes/{id}/usage   what it uses, and used lately
    PUT    /v1/sandboxes/{id}/egress  EgressOrder: answers when it holds, and what it no longer allows has ended
    PUT    /v1/sandboxes/{id}/secrets SecretsOrder: kept in memory only
    PUT    /v1/sandboxes/{id}/asks/{n}   AskAnswer: for a request that is held
    POST   /v1/rotations/{secret}/stored?value=  the control plane has seen to the rotation to what has this fingerprint
    PUT    /v1/authority              Authority: what certificates for guests are signed with; kept in memory only
    GET    /v1/egress?boot=&after=    NDJSON of EgressEvent, as the gateway tells them
    GET    /v1/watch                  NDJSON of Fact: all it holds, `synced`, then every change, a heartbeat each second
    POST   /v1/templates              build one; NDJSON of BuildLine, the last of which is `done` or `failed`
    PUT    /v1/volumes/{id}           make a volume (idempotent)
    DELETE /v1/volumes/{id}           delete it with all that is in it (idempotent; unknown ids too)
    *      /v1/volumes/{id}/content/{dir|path|file}   its content, see wire/volumes.py
    GET    /v1/templates              the built ones
    DELETE /v1/templates/{digest}
"""

import datetime
from typing import Annotated, Literal

import pydantic

from space.model.errors import SpaceError, from_problem
from space.wire.agent import AgentVolume, GuestUsage
from space.wire.gateway import EgressOrder, Rotated, SecretsOrder

HEARTBEAT_S = 1.0


class WorkerInfo(pydantic.BaseModel):
    """What a worker is. `boot_id` changes with each start of the worker process."""

    worker_id: str
    boot_id: str
    driver: str
    accelerator: str
    vmm_version: str
    memory_mib: int
    memory_free_mib: int
    authority: "AuthorityInfo | None" = None
    """None: it has none, as after each start; nothing that needs a certificate works."""


class AuthorityInfo(pydantic.BaseModel):
    """Which intermediate a worker signs with: the serial number of its certificate in hex, and until when."""

    serial: str
    not_after: datetime.datetime


class StartSandbox(pydantic.BaseModel):
    """The wish, as far as a worker needs it."""

    epoch: int
    template: str
    template_name: str = ""
    """What its user calls the template; told to the guest."""
    vcpus: int
    memory_mib: int
    env: dict[str, str]
    agent_token: pydantic.SecretStr
    egress: EgressOrder | None = None
    """What may leave it; None: nothing."""
    secrets: SecretsOrder | None = None
    volumes: list[AgentVolume] = []


VmState = Literal["creating", "running", "paused", "suspending", "suspended", "restoring", "failed", "deleting"]


class SandboxFact(pydantic.BaseModel):
    """What is true of a sandbox on a worker.

    `generation` counts its suspensions on storage; `durable` tells that the last one would survive a loss of power.
    `egress_generation` and `secrets_generation` are those it goes by, 0 for none.
    """

    type: Literal["sandbox"] = "sandbox"
    id: str
    state: VmState
    reason: str | None = None
    epoch: int
    timings_ms: dict[str, float] = {}
    generation: int = 0
    durable: bool = False
    egress_generation: int = 0
    secrets_generation: int = 0


class Order(pydantic.BaseModel):
    """A wish about a sandbox that is there."""

    epoch: int


class SuspendSandbox(Order):
    """`memory` False keeps the disk only: what runs in it ends, and restoring boots again."""

    memory: bool = True


class ForkChild(pydantic.BaseModel):
    """A copy to be: a sandbox of its own from its first instruction. It has no secrets until it is given its own."""

    id: str
    epoch: int
    template_name: str = ""
    env: dict[str, str]
    agent_token: pydantic.SecretStr
    egress: EgressOrder | None = None
    """As in StartSandbox; nothing of the parent's policy or secrets goes over by itself."""
    volumes: list[AgentVolume] = []


class ForkSandbox(Order):
    """Which copies to make."""

    children: list[ForkChild]


class ForkResult(pydantic.BaseModel):
    """What became of one child: it runs, or `code` and `detail` say why not; then nothing of it is left."""

    id: str
    fact: SandboxFact | None = None
    code: str | None = None
    detail: str | None = None

    def error(self) -> SpaceError:
        """Return why it does not run."""
        return from_problem(self.code or "internal", self.detail or "It did not start.")


class SnapshotSandbox(Order):
    """`name` becomes the template's tag on the worker; `memory` False keeps the disk only."""

    name: str
    memory: bool = True


class Activity(pydantic.BaseModel):
    """What the agent says is going on: any of these keeps a sandbox from being idle."""

    foreground_commands: int
    attached_readers: int
    open_connections: int


class UsageSample(GuestUsage):
    """What a guest used at one moment, by the worker's clock."""

    at: datetime.datetime


class Usage(pydantic.BaseModel):
    """What a sandbox used lately, oldest first; its newest sample is of now where it runs and its agent answers."""

    samples: list[UsageSample]


class GoneFact(pydantic.BaseModel):
    """The worker holds nothing of this sandbox any more."""

    type: Literal["gone"] = "gone"
    id: str


class SyncedFact(pydantic.BaseModel):
    """Everything the worker holds has been told; what comes next is change."""

    type: Literal["synced"] = "synced"
    boot_id: str


class HeartbeatFact(pydantic.BaseModel):
    """The worker lives."""

    type: Literal["heartbeat"] = "heartbeat"
    memory_free_mib: int


class RotatedFact(Rotated):
    """A provider rotated a secret. Told to every watcher until one says that it is stored."""

    type: Literal["rotated"] = "rotated"


AnyFact = SandboxFact | GoneFact | SyncedFact | HeartbeatFact | RotatedFact
Fact = Annotated[AnyFact, pydantic.Field(discriminator="type")]
FACT: pydantic.TypeAdapter[AnyFact] = pydantic.TypeAdapter(Fact)
