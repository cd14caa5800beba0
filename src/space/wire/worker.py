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

import contextlib
import datetime
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Literal

import httpx2
import pydantic

from space.model.errors import SpaceError, Unavailable, from_problem
from space.model.ids import SandboxId, TemplateDigest
from space.model.template import DEFAULT_DISK_MIB, Template, TemplateKind
from space.wire.agent import AgentVolume, GuestUsage
from space.wire.calls import Answer, Calls
from space.wire.gateway import AskAnswer, Authority, EgressEvent, EgressOrder, Rotated, SecretsOrder
from space.wire.problem import raise_for_problem, raise_problem

CREATE_TIMEOUT_S = 90
BUILD_TIMEOUT_S = 1800
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
_FACT: pydantic.TypeAdapter[AnyFact] = pydantic.TypeAdapter(Fact)


class BuildTemplate(pydantic.BaseModel):
    """What to build, by the recipe `recipe` (None: that of the name, else `base`); `force` builds again in any case."""

    name: str
    recipe: str | None = None
    disk_mib: int = pydantic.Field(default=DEFAULT_DISK_MIB, ge=1024, le=1024 * 1024)
    force: bool = False


class TemplateModel(pydantic.BaseModel):
    """A template on the wire; see model.template.Template."""

    digest: str
    name: str
    disk_mib: int
    used_bytes: int
    kernel_release: str
    agent_version: str
    vmm: str
    built_at: datetime.datetime
    build_s: float
    kind: TemplateKind = TemplateKind.BUILT
    sandbox: str | None = None
    memory: bool = False
    vcpus: int | None = None
    memory_mib: int | None = None

    @classmethod
    def of(cls, template: Template) -> "TemplateModel":
        """Return the wire form of a template."""
        return cls(**{name: getattr(template, name) for name in cls.model_fields})

    def to_template(self) -> Template:
        """Return the model object."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return Template(**(values | {"digest": TemplateDigest(self.digest)}))


class BuildLog(pydantic.BaseModel):
    """A line of a build's log."""

    type: Literal["log"] = "log"
    at_s: float
    """Seconds since the build began."""
    step: str
    text: str


class BuildDone(pydantic.BaseModel):
    """The build's end. `cached` tells that nothing had to be done."""

    type: Literal["done"] = "done"
    template: TemplateModel
    cached: bool


class BuildFailedLine(pydantic.BaseModel):
    """The build's end, when it failed."""

    type: Literal["failed"] = "failed"
    code: str
    detail: str


BuildLine = Annotated[BuildLog | BuildDone | BuildFailedLine, pydantic.Field(discriminator="type")]
_BUILD: pydantic.TypeAdapter[BuildLog | BuildDone | BuildFailedLine] = pydantic.TypeAdapter(BuildLine)


def in_clear(wish: pydantic.BaseModel) -> str:
    """Return a wish as JSON with its secrets readable: they go over a private socket and nowhere else."""

    def plain(value: object) -> object:
        return value.get_secret_value() if isinstance(value, pydantic.SecretStr) else str(value)

    return json.dumps(wish.model_dump(), default=plain)


class WorkerClient:
    """Talks to one worker. Any transport failure is Unavailable: the worker may be restarting."""

    def __init__(self, socket: Path) -> None:
        self._calls = Calls(socket)
        self.http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(
                uds=str(socket), limits=httpx2.Limits(max_connections=None, max_keepalive_connections=16)
            ),
            base_url="http://worker",
            timeout=httpx2.Timeout(10),
        )

    async def close(self) -> None:
        """Close its connections."""
        self._calls.close()
        await self.http.aclose()

    async def call(self, method: str, path: str, body: str = "", timeout_s: float = 10) -> Answer:
        try:
            answer = await self._calls.call(method, path, body.encode(), timeout_s)
        except OSError as error:
            raise Unavailable("The worker does not answer; it may be restarting. Try again.") from error
        raise_problem(path, answer.status, answer.content, answer.headers)
        return answer

    async def info(self) -> WorkerInfo:
        """Return what the worker is."""
        return WorkerInfo.model_validate_json((await self.call("GET", "/v1/worker")).content)

    async def start(self, sandbox: SandboxId, wish: StartSandbox) -> SandboxFact:
        """Make it run, or learn that it does; raises what went wrong (NoCapacity, BootFailed, NotFound, Stale...)."""
        response = await self.call("PUT", f"/v1/sandboxes/{sandbox}", in_clear(wish), CREATE_TIMEOUT_S)
        return SandboxFact.model_validate_json(response.content)

    async def delete(self, sandbox: SandboxId, epoch: int) -> None:
        """End it and give everything back; fine when there is nothing."""
        await self.call("DELETE", f"/v1/sandboxes/{sandbox}?epoch={epoch}", timeout_s=30)

    async def pause(self, sandbox: SandboxId, epoch: int) -> SandboxFact:
        """Stop its vCPUs; raises Conflict where it is not running or paused."""
        return await self._order(sandbox, "pause", Order(epoch=epoch))

    async def resume(self, sandbox: SandboxId, epoch: int) -> SandboxFact:
        """Let its vCPUs run; raises Conflict where it is not running or paused."""
        return await self._order(sandbox, "resume", Order(epoch=epoch))

    async def suspend(self, sandbox: SandboxId, wish: SuspendSandbox) -> SandboxFact:
        """Put it to storage; returns when its VM is gone. What goes wrong leaves it running and is raised."""
        return await self._order(sandbox, "suspend", wish)

    async def restore(self, sandbox: SandboxId, wish: StartSandbox) -> SandboxFact:
        """Bring it back; returns when it runs. What goes wrong leaves it suspended and is raised."""
        return await self._order(sandbox, "restore", wish)

    async def fork(self, sandbox: SandboxId, wish: ForkSandbox) -> list[ForkResult]:
        """Start copies of a running or suspended sandbox; one result per child."""
        response = await self.call("POST", f"/v1/sandboxes/{sandbox}/fork", in_clear(wish), CREATE_TIMEOUT_S)
        return pydantic.TypeAdapter(list[ForkResult]).validate_json(response.content)

    async def snapshot(self, sandbox: SandboxId, wish: SnapshotSandbox) -> Template:
        """Freeze a copy of a running or suspended sandbox as a template."""
        path = f"/v1/sandboxes/{sandbox}/snapshots"
        response = await self.call("POST", path, wish.model_dump_json(), CREATE_TIMEOUT_S)
        return TemplateModel.model_validate_json(response.content).to_template()

    async def activity(self, sandbox: SandboxId) -> Activity:
        """Ask a running sandbox's agent what is going on; raises Unavailable where it does not answer."""
        return Activity.model_validate_json((await self.call("GET", f"/v1/sandboxes/{sandbox}/activity")).content)

    async def usage(self, sandbox: SandboxId) -> Usage:
        """Ask what a sandbox uses and used lately; raises NotFound."""
        return Usage.model_validate_json((await self.call("GET", f"/v1/sandboxes/{sandbox}/usage")).content)

    async def put_egress(self, sandbox: SandboxId, order: EgressOrder) -> None:
        """Let this leave from now on, and end what it no longer allows; raises NotFound, Stale, InvalidPolicy."""
        await self.call("PUT", f"/v1/sandboxes/{sandbox}/egress", order.model_dump_json())

    async def put_secrets(self, sandbox: SandboxId, order: SecretsOrder) -> None:
        """Use these values from the next request on; raises NotFound, Stale."""
        await self.call("PUT", f"/v1/sandboxes/{sandbox}/secrets", order.model_dump_json())

    async def answer_ask(self, sandbox: SandboxId, ask: int, answer: AskAnswer) -> None:
        """Answer for a held request; raises NotFound when it is not held any more."""
        await self.call("PUT", f"/v1/sandboxes/{sandbox}/asks/{ask}", answer.model_dump_json())

    async def put_authority(self, authority: Authority) -> None:
        """Sign with this from now on; raises InvalidArgument where key and certificates do not belong together."""
        await self.call("PUT", "/v1/authority", authority.model_dump_json())

    async def egress_events(self, boot: str = "", after: int = 0) -> AsyncGenerator[EgressEvent]:
        """Yield events after `after` of the gateway process `boot`, or from its oldest where that is another.

        Silent while nothing happens; raises Unavailable when worker or gateway is gone.
        """
        lines = self.lines("GET", f"/v1/egress?boot={boot}&after={after}", None, None)
        async with contextlib.aclosing(lines) as found:
            async for line in found:
                yield EgressEvent.model_validate_json(line)
        raise Unavailable("The worker ended its egress events; it or the gateway may be restarting.")

    async def _order(self, sandbox: SandboxId, verb: str, wish: pydantic.BaseModel) -> SandboxFact:
        response = await self.call("POST", f"/v1/sandboxes/{sandbox}/{verb}", in_clear(wish), CREATE_TIMEOUT_S)
        return SandboxFact.model_validate_json(response.content)

    async def sandboxes(self) -> list[SandboxFact]:
        """Return what the worker holds."""
        response = await self.call("GET", "/v1/sandboxes")
        return pydantic.TypeAdapter(list[SandboxFact]).validate_json(response.content)

    async def templates(self) -> list[Template]:
        """Return the templates it has."""
        response = await self.call("GET", "/v1/templates")
        return [m.to_template() for m in pydantic.TypeAdapter(list[TemplateModel]).validate_json(response.content)]

    async def delete_template(self, digest: TemplateDigest) -> None:
        """Remove a template's files; fine when there are none."""
        await self.call("DELETE", f"/v1/templates/{digest}")

    async def rotation_stored(self, secret: str, print_of_value: str) -> None:
        """Say that the rotation to the value with this fingerprint was seen to; fine for one that it does not know."""
        await self.call("POST", f"/v1/rotations/{secret}/stored?value={print_of_value}")

    async def watch(self) -> AsyncGenerator[AnyFact]:
        """Yield facts for ever; raises Unavailable when the stream ends or stays silent for five heartbeats."""
        async with contextlib.aclosing(self.lines("GET", "/v1/watch", None, 5 * HEARTBEAT_S)) as found:
            async for line in found:
                yield _FACT.validate_json(line)
        raise Unavailable("The worker ended its watch; it may be restarting.")

    async def build(self, wish: BuildTemplate) -> AsyncGenerator[BuildLog | BuildDone | BuildFailedLine]:
        """Build a template; yields the log, and last `done` or `failed`."""
        last: BuildLog | BuildDone | BuildFailedLine | None = None
        lines = self.lines("POST", "/v1/templates", wish.model_dump_json(), BUILD_TIMEOUT_S)
        async with contextlib.aclosing(lines) as found:
            async for line in found:
                last = _BUILD.validate_json(line)
                yield last
        if not isinstance(last, BuildDone | BuildFailedLine):
            raise Unavailable("The worker went away during the build; start the build again.")

    async def lines(self, method: str, path: str, body: str | None, silence_s: float | None) -> AsyncGenerator[str]:
        timeout = httpx2.Timeout(10, read=silence_s)
        headers = {"content-type": "application/json"}
        try:
            async with self.http.stream(method, path, content=body, timeout=timeout, headers=headers) as response:
                if not response.is_success:
                    await response.aread()
                    raise_for_problem(response)
                async for line in response.aiter_lines():
                    if line:
                        yield line
        except httpx2.TransportError as error:
            raise Unavailable("The worker does not answer; it may be restarting. Try again.") from error


def error_line(error: SpaceError) -> BuildFailedLine:
    """Return the last line of a build that failed with `error`."""
    return BuildFailedLine(code=error.slug, detail=str(error))
