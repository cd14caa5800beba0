"""The machine that a template's steps run in: brought up from a layer's disk, frozen for a moment after each step.

What runs in it is a stranger's code, as in a sandbox: it has a slot, a uid and a policy as a sandbox has, and is never
trusted with more. It belongs to the build that made it: nobody adopts it, and what a killed worker leaves of it is
swept by the next.
"""

import base64
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

import httpx2
import pydantic

from space.disk import rootfs
from space.disk.frozen import Frozen
from space.guest import agent, layer
from space.guest.agent import AgentError, AgentSilent
from space.host import netns
from space.image.catalog import Bootable
from space.model.build import DEFAULT_PATH, State, Step, StepKind
from space.model.errors import BuildFailed, SpaceError, Unavailable
from space.model.ids import SandboxId, new_id
from space.telemetry import logger
from space.vmm.driver import VmmError
from space.wire.agent import FreezeWish, ThawWish
from space.wire.gateway import EgressOrder, SlotEntry
from space.worker import stopping
from space.worker.guest_vm import Died, GuestVm, Identity
from space.worker.host import Host
from space.worker.records import VmRecord

log = logger()
COMMAND_S = 3600.0
"""How long one command may take."""

_ATTEMPTS = 2
_FREEZE_S = 60.0
_LINE_CHARS = 4000
_STALL_S = 120.0
"""The agent sends something at least each minute while a command runs."""

_ANSWER_BYTES = 1024 * 1024
_OK = 200
Log = Callable[[str, bool], None]
"""Takes a line of a command's output, and whether it came on standard error."""


class _Line(pydantic.BaseModel):
    """A line of a command's stream, as far as a build looks at it."""

    type: str
    data: str = ""
    code: int | None = None
    signal: str | None = None


class _Refusal(pydantic.BaseModel):
    code: str = ""
    detail: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """How a build machine is to be: kernel and initramfs, its size, and what may leave it."""

    files: Bootable
    vcpus: int
    memory_mib: int
    egress: EgressOrder | None


class BuildVm:
    """One that is up."""

    def __init__(self, host: Host, guest: GuestVm, token: str) -> None:
        self._host, self._guest, self._token = host, guest, token
        self._netns = netns.path(guest.slot.netns)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def do(self, step: Step, before: State, state: State, archive: Path | None, said: Log) -> None:
        """Do one step; `before` and `state` are what holds before and after it. Raises BuildFailed, Died."""
        try:
            match step.kind:
                case StepKind.RUN:
                    user = step.args[1] if len(step.args) > 1 and step.args[1] else before.user
                    await self.run(step.args[0], dataclasses.replace(before, user=user), said)
                case StepKind.COPY:
                    assert archive is not None
                    await self._guest.unless_dead(layer.copy(self._netns, archive, _copy_query(step, before)))
                case StepKind.ENV:
                    path = state.env.get("PATH", DEFAULT_PATH)
                    await self._guest.unless_dead(layer.set_path(self._netns, path))
                case StepKind.WORKDIR:
                    making = layer.make_workdir(self._netns, state.workdir, before.user)
                    await self._guest.unless_dead(making)
                case StepKind.USER:
                    sudo = len(step.args) > 1 and step.args[1] == "true"
                    await self._guest.unless_dead(layer.make_user(self._netns, state.user, sudo=sudo))
        except layer.Refused as error:
            raise BuildFailed(f"failed to execute '{step}': {error}") from error
        except (AgentError, AgentSilent) as error:
            raise Died(str(error)) from error

    async def furnish(self, user: str) -> None:
        """Give an image for containers what a machine has, and the user that it names. Raises BuildFailed, Died."""
        try:
            await self._guest.unless_dead(layer.furnish(self._netns))
            if user != "root":
                await self._guest.unless_dead(layer.make_user(self._netns, user, sudo=False))
        except layer.Refused as error:
            raise BuildFailed(f"The image cannot be made a machine: {error}") from error
        except (AgentError, AgentSilent) as error:
            raise Died(str(error)) from error

    async def finish(self, state: State, start: str | None, ready: str | None) -> None:
        """Write what the template starts with. Raises BuildFailed, Died."""
        defaults = {"user": state.user, "workdir": state.workdir, "env": dict(state.env)}
        try:
            await self._guest.unless_dead(layer.finish(self._netns, defaults, start, ready))
        except layer.Refused as error:
            raise BuildFailed(f"What the template starts with could not be written: {error}") from error
        except (AgentError, AgentSilent) as error:
            raise Died(str(error)) from error

    async def run(self, command: str, state: State, said: Log) -> None:
        """Run a command to its end and pass on what it says. Raises BuildFailed, Died."""
        body = {
            "cmd": command, "user": state.user, "cwd": state.workdir, "env": dict(state.env), "timeout_s": COMMAND_S,
        }  # fmt: skip
        code, signal = await self._guest.unless_dead(self._stream(command, body, said))
        if code == 0:
            return
        how = f"exit status {code}" if code is not None else f"signal: {signal or 'killed'}"
        raise BuildFailed(f"failed to run command '{command}': command failed: {how}")

    async def _stream(self, command: str, body: Mapping[str, object], said: Log) -> tuple[int | None, str | None]:
        headers = {"x-space-sandbox": self._guest.record.vm, "x-access-token": self._token}
        outputs = {"stdout": _Lines(lambda text: said(text, False)), "stderr": _Lines(lambda text: said(text, True))}
        timeout = httpx2.Timeout(30, read=_STALL_S)
        try:
            async with self._host.ingress.stream(
                "POST", "/v1/commands", json=body, headers=headers, timeout=timeout
            ) as answer:
                if answer.status_code != _OK:
                    raise _refused(command, str(body["user"]), await _bounded(answer))
                async for text in _lines(answer):
                    line = _Line.model_validate_json(text)
                    if line.type in outputs:
                        outputs[line.type].feed(base64.b64decode(line.data))
                    elif line.type == "exit":
                        for output in outputs.values():
                            output.end()
                        return line.code, line.signal
        except (httpx2.TransportError, pydantic.ValidationError, ValueError) as error:
            raise Died(f"the command's output broke off: {error!r}") from error
        raise Died("the command's output ended without its exit")

    async def free_mib(self) -> int | None:
        """Return how much room the root filesystem has left; None where the image has nothing to tell it with."""
        said: list[str] = []
        with contextlib.suppress(BuildFailed):
            await self.run("df -Pm / | tail -n 1", State(user="root", workdir="/"), lambda text, _: said.append(text))
        fields = said[-1].split() if said else []
        return int(fields[3]) if len(fields) > 3 and fields[3].isdigit() else None

    # -- its disk ------------------------------------------------------------------------------------------------------

    async def copy_disk(self, target: Path) -> None:
        """Make `target` its disk as it is now, made consistent by the guest itself; it goes on. Raises Died."""
        line = self._guest.line
        wish = FreezeWish(reason="snapshot", hook_timeout_s=0, sync=True, fsfreeze=True)
        try:
            await self._guest.unless_dead(agent.freeze(line, wish, _FREEZE_S))
            await stopping.stop_vcpus(self._guest)
            try:
                await rootfs.reflink(self._guest.disk, target)
            finally:
                await stopping.run_vcpus(self._guest)
            await self._guest.unless_dead(agent.thaw(line, ThawWish(reason="snapshot"), stopping.AGENT_S))
        except (AgentError, AgentSilent) as error:
            raise Died(f"it could not be brought to a stop: {error}") from error


@contextlib.asynccontextmanager
async def up(host: Host, machine: Machine, disk: Path, source: Frozen | None) -> AsyncGenerator[BuildVm]:
    """Bring a machine up: booted on a copy of `disk`, or continued from a frozen template. Gone again at the end."""
    guest, token = await _started(host, machine, disk, source)
    vm = SandboxId(guest.record.vm)
    try:
        address = SlotEntry.model_validate({"address": guest.slot.address, "egress": machine.egress})
        await host.link.admit(vm, address)
        await host.probe(vm, guest.line.limit)
        yield BuildVm(host, guest, token)
    finally:
        await host.link.withdraw(vm)
        await guest.end()


async def _started(host: Host, machine: Machine, disk: Path, source: Frozen | None) -> tuple[GuestVm, str]:
    for attempt in range(1, _ATTEMPTS + 1):
        guest = GuestVm.fresh(host, machine.vcpus, machine.memory_mib, _unrecorded)
        identity = Identity(guest.record.vm, {}, new_id(), service=False)
        try:
            async with host.starts:
                if source is None:
                    await guest.boot(machine.files, disk, identity)
                else:
                    await guest.start(machine.files, source)
                    await guest.initialise(identity, "fork")
            return guest, identity.token
        except (Died, VmmError) as error:
            log.warning("build_machine_failed", attempt=attempt, cause=str(error))
            await guest.end()
            if attempt == _ATTEMPTS:
                console = getattr(error, "console", "")[-1000:]
                raise BuildFailed(f"The build's machine did not come up, twice. {console}".strip()) from error
        except BaseException:
            await guest.end()
            raise
    raise AssertionError("the last attempt returns or raises")


def _unrecorded(_: VmRecord) -> None:
    """It ends with the build, and needs no record: what a killed worker leaves of it, nobody owns."""


def _copy_query(step: Step, state: State) -> dict[str, str]:
    source, target, owner, mode = (*step.args, "", "")[:4]
    found = {"source": source, "target": target, "workdir": state.workdir, "user": state.user}
    return found | ({"owner": owner} if owner else {}) | ({"mode": mode} if mode else {})


async def _bounded(answer: httpx2.Response) -> bytes:
    found = bytearray()
    async for chunk in answer.aiter_bytes():
        found += chunk
        if len(found) > _ANSWER_BYTES:
            break
    return bytes(found)


async def _lines(answer: httpx2.Response) -> AsyncGenerator[bytes]:
    """Yield the lines of a guest's stream that are not empty; raises ValueError for one that is too long."""
    rest = b""
    async for chunk in answer.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
        if len(rest) > _ANSWER_BYTES:
            raise ValueError("a line without end")


def _refused(command: str, user: str, body: bytes) -> SpaceError:
    """Return the error for a command that the agent did not start; the words are E2B's."""
    try:
        refusal = _Refusal.model_validate(json.loads(body))
    except (ValueError, pydantic.ValidationError):
        refusal = _Refusal(detail="the agent gave no reason")
    if refusal.code in ("unavailable", "sandbox_unreachable"):
        return Unavailable("The build's machine cannot be reached; the host's proxy may be restarting. Build again.")
    why = f"unauthenticated: invalid username: '{user}'" if refusal.code == "no_such_user" else refusal.detail
    return BuildFailed(f"failed to run command '{command}': command failed: {why}")


class _Lines:
    """Cuts a byte stream into lines of a bounded length; what is no UTF-8 is replaced."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take, self._rest = take, b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._say(line)
        while len(self._rest) > _LINE_CHARS:
            self._say(self._rest[:_LINE_CHARS])
            self._rest = self._rest[_LINE_CHARS:]

    def end(self) -> None:
        if self._rest:
            self._say(self._rest)
        self._rest = b""

    def _say(self, line: bytes) -> None:
        for start in range(0, max(1, len(line)), _LINE_CHARS):
            self._take(line[start : start + _LINE_CHARS].rstrip(b"\r").decode(errors="replace"))
