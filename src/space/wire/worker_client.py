"""A client of one worker's API; wire/worker.py says what there is."""

import contextlib
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import pydantic

from space.model.errors import Unavailable
from space.model.ids import SandboxId, TemplateDigest
from space.model.template import Template
from space.wire.calls import Answer, Calls
from space.wire.gateway import AskAnswer, Authority, EgressEvent, EgressOrder, SecretsOrder
from space.wire.problem import raise_for_problem, raise_problem
from space.wire.templates import BUILD, BuildDone, BuildFailedLine, BuildLog, BuildTemplate, TemplateModel
from space.wire.worker import (
    FACT,
    HEARTBEAT_S,
    Activity,
    AnyFact,
    ForkResult,
    ForkSandbox,
    Order,
    SandboxFact,
    SnapshotSandbox,
    StartSandbox,
    SuspendSandbox,
    Usage,
    WorkerInfo,
)

CREATE_TIMEOUT_S = 90
BUILD_TIMEOUT_S = 1800


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
                yield FACT.validate_json(line)
        raise Unavailable("The worker ended its watch; it may be restarting.")

    async def build(self, wish: BuildTemplate) -> AsyncGenerator[BuildLog | BuildDone | BuildFailedLine]:
        """Build a template; yields the log, and last `done` or `failed`."""
        last: BuildLog | BuildDone | BuildFailedLine | None = None
        lines = self.lines("POST", "/v1/templates", wish.model_dump_json(), BUILD_TIMEOUT_S)
        async with contextlib.aclosing(lines) as found:
            async for line in found:
                last = BUILD.validate_json(line)
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
