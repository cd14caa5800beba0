"""Keep the server processes running: start them in order, restart what dies, stop them in reverse order.

A process counts as started when its `ready` probe says so. One that dies later is started again after 0.1 s, then
twice that, up to 5 s, for ever; what it last logged goes to our log. Each has a record below the run folder, so that
the next supervisor finds and stops those of one that was killed. MicroVMs are not among them: they are the worker's.
"""

import asyncio
import dataclasses
import json
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pydantic

from space.host.command import CommandError
from space.host.daemon import User, spawn
from space.host.files import write_atomic
from space.host.process import ProcessRef, Watched, watch
from space.model.errors import SpaceError, Unavailable
from space.telemetry import logger

_BACKOFF_FIRST_S, _BACKOFF_LAST_S = 0.1, 5.0
_STEADY_S = 30.0
"""A process that was up this long starts again without having gained delay."""
_PROBE_S = 0.05
_TELL_S = 5.0
_TAIL_BYTES, _LOGGED_TAIL = 4096, 1000
_ALWAYS = ("process", "level", "timestamp")

log = logger()


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonSpec:
    """How a server process is started and judged.

    `ready` raises or returns False while it is not; `prepare` runs before each start (a log file, a stale socket).
    `output` gets what it prints, None discards it; `log_file` is where its log is. `user` None is root.
    """

    name: str
    argv: Sequence[str]
    log_file: Path
    output: Path | None
    ready: Callable[[], Awaitable[bool]]
    prepare: Callable[[], Awaitable[None]] | None = None
    user: User | None = None
    netns: Path | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    start_timeout_s: float = 30
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 3


class Record(pydantic.BaseModel):
    """What is kept of a running server process. `restarts` counts since `space up`; times in seconds of the epoch."""

    name: str
    pid: int
    start_time: int
    state: str
    restarts: int
    since: float
    last_exit: int | None = None


def read_records(folder: Path) -> list[Record]:
    """Return the records in `folder`, in order of name."""
    return [Record.model_validate_json(path.read_text()) for path in sorted(folder.glob("*.json"))]


async def stop_leftovers(folder: Path) -> list[str]:
    """Stop the recorded processes that still run without a supervisor; return their names.

    The last that was started goes first.
    """
    stopped = []
    for record in sorted(read_records(folder), key=lambda record: record.since, reverse=True):
        left = watch(ProcessRef(record.pid, record.start_time))
        if left is not None:
            await left.stop(3)
            stopped.append(record.name)
        (folder / f"{record.name}.json").unlink(missing_ok=True)
    return stopped


class Supervisor:
    """Runs server processes within a TaskGroup. `folder` holds the records, `say` tells a person about progress."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._running: dict[str, tuple[DaemonSpec, Watched]] = {}
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, spec: DaemonSpec, group: asyncio.TaskGroup) -> None:
        """Start a process, wait until it is ready, and keep it running in `group` from then on.

        Raises Unavailable, with the end of its log, when it ends or is not ready in time.
        """
        began = time.monotonic()
        watched = await self._spawn(spec, restarts=0)
        await _until_ready(spec, watched, self._say)
        self._record(spec, watched, state="ready", restarts=0)
        self._say(f"{spec.name} is up ({time.monotonic() - began:.1f} s)")
        self._keepers.append(group.create_task(self._keep(spec, watched)))

    async def stop(self) -> None:
        """Stop everything in reverse order of starting; nothing is restarted any more."""
        for keeper in self._keepers:
            keeper.cancel()
        if self._keepers:
            await asyncio.wait(self._keepers)
        for name in reversed(list(self._running)):
            spec, watched = self._running.pop(name)
            watched.send(spec.stop_signal)
            try:
                async with asyncio.timeout(spec.stop_grace_s):
                    await watched.wait()
            except TimeoutError:
                log.warning("daemon_killed", name=name, grace_s=spec.stop_grace_s)
                watched.send(signal.SIGKILL)
                await watched.wait()
            (self._folder / f"{name}.json").unlink(missing_ok=True)

    async def _keep(self, spec: DaemonSpec, watched: Watched) -> None:
        backoff_s, restarts = _BACKOFF_FIRST_S, 0
        began = time.monotonic()
        while True:
            status = await watched.wait()
            if time.monotonic() - began > _STEADY_S:
                backoff_s = _BACKOFF_FIRST_S
            log.error(
                "daemon_died",
                name=spec.name,
                status=status,
                restart_in_s=backoff_s,
                tail=_tail(spec.log_file)[-_LOGGED_TAIL:],
            )
            self._record(spec, watched, state="restarting", restarts=restarts, last_exit=status)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_LAST_S)
            restarts += 1
            began = time.monotonic()
            try:
                watched = await self._spawn(spec, restarts=restarts, last_exit=status)
                await _until_ready(spec, watched, log.debug)
            except (SpaceError, OSError, CommandError) as error:
                log.warning("daemon_not_ready", name=spec.name, error=str(error))
                continue
            self._record(spec, watched, state="ready", restarts=restarts, last_exit=status)
            log.info("daemon_restarted", name=spec.name, restarts=restarts)

    async def _spawn(self, spec: DaemonSpec, *, restarts: int, last_exit: int | None = None) -> Watched:
        if spec.prepare is not None:
            await spec.prepare()
        watched = spawn(spec.argv, log=spec.output, user=spec.user, netns=spec.netns, env=spec.env)
        self._running[spec.name] = (spec, watched)
        self._record(spec, watched, state="starting", restarts=restarts, last_exit=last_exit)
        return watched

    def _record(
        self, spec: DaemonSpec, watched: Watched, *, state: str, restarts: int, last_exit: int | None = None
    ) -> None:
        record = Record(
            name=spec.name,
            pid=watched.ref.pid,
            start_time=watched.ref.start_time,
            state=state,
            restarts=restarts,
            since=time.time(),
            last_exit=last_exit,
        )
        write_atomic(self._folder / f"{spec.name}.json", record.model_dump_json(), mode=0o644)


async def _until_ready(spec: DaemonSpec, watched: Watched, say: Callable[[str], None]) -> None:
    """Return when the probe is content, telling every 5 s what the log says last.

    Raises Unavailable, with the end of the log, when the process ends first or its time is over.
    """
    began = time.monotonic()
    told = began
    while True:
        try:
            if await spec.ready():
                return
        except (SpaceError, OSError):
            pass  # not there yet
        if not watched.alive:
            raise Unavailable(_failure(spec, f"ended at once with status {await watched.wait()}"))
        now = time.monotonic()
        if now - began > spec.start_timeout_s:
            raise Unavailable(_failure(spec, f"is not ready after {spec.start_timeout_s:.0f} s"))
        if now - told > _TELL_S:
            told = now
            say(f"{spec.name} is starting ({now - began:.0f} s): {_last_word(spec.log_file)}")
        await asyncio.sleep(_PROBE_S)


def _failure(spec: DaemonSpec, what: str) -> str:
    return f"{spec.name} {what}. The end of {spec.log_file}:\n{_tail(spec.log_file)}"


def _last_word(path: Path) -> str:
    """Return what a log says last, for a person: an event with its facts, or the line as it is."""
    line = (_tail(path).splitlines() or ["no word yet"])[-1]
    try:
        facts = json.loads(line)
        event = facts.pop("event")
    except (ValueError, KeyError, AttributeError):
        return line[:160]
    told = " ".join(f"{name}={value}" for name, value in facts.items() if name not in _ALWAYS)
    return f"{event} {told}"[:160]


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
