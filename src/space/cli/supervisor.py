"""Keep the server processes running: start them in order, restart what dies, stop them in reverse order.

A process counts as started when its `ready` probe says so. One that dies later is started again after 0.1 s, then
twice that, up to 5 s, for ever. Each has a record below the run folder, so that the next supervisor finds and stops
those of one that was killed. MicroVMs are not among them: they are the worker's.

Everything said here is for a person, in plain lines; a process's own log is in its file.
"""

import asyncio
import dataclasses
import json
import re
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

_BACKOFF_FIRST_S, _BACKOFF_LAST_S = 0.1, 5.0
_STEADY_S = 3.0
"""A process that was ready for this long, which is more than any takes to start, starts again without having gained
delay: it does not go round in circles, and whoever needs it is not to wait for more than that start."""
_PROBE_S = 0.05
_TELL_FIRST_S, _TELL_S = 5.0, 15.0
_TAIL_BYTES, _LAST_LINES = 16384, 5
_ERROR = re.compile(r"([a-z_][\w]*\.)*[A-Z]\w*(: |$)")
"""Where Python names an error at the end of a traceback."""
_ALWAYS = ("process", "level", "timestamp")


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonSpec:
    """How a server process is started and judged.

    `ready` raises or returns False while it is not; `prepare` runs before each start (a log file, a stale socket).
    `output` gets what it prints, None discards it; `log_file` is where its log is. `user` None is root. `doing` has
    words for what its log says while it starts ("event fact=value"); without any, only the time is told.
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
    doing: Mapping[str, str] = dataclasses.field(default_factory=dict)


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

        Raises Unavailable, with its last words, when it ends or is not ready in time.
        """
        began = time.monotonic()
        logged = _log_size(spec)
        watched = await self._spawn(spec, restarts=0)
        await _until_ready(spec, watched, logged, self._say)
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
                self._say(f"{name} did not stop within {spec.stop_grace_s:g} s; it was killed")
                watched.send(signal.SIGKILL)
                await watched.wait()
            (self._folder / f"{name}.json").unlink(missing_ok=True)

    async def _keep(self, spec: DaemonSpec, watched: Watched) -> None:
        backoff_s, restarts = _BACKOFF_FIRST_S, 0
        ready_at: float | None = time.monotonic()
        while True:
            status = await watched.wait()
            if ready_at is not None and time.monotonic() - ready_at > _STEADY_S:
                backoff_s = _BACKOFF_FIRST_S
            self._say(f"{spec.name} {_ended(status)}; starting it again. Its log: {spec.log_file}")
            self._record(spec, watched, state="restarting", restarts=restarts, last_exit=status)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_LAST_S)
            restarts += 1
            ready_at = None
            logged = _log_size(spec)
            try:
                watched = await self._spawn(spec, restarts=restarts, last_exit=status)
                await _until_ready(spec, watched, logged, self._say)
            except (SpaceError, OSError, CommandError) as error:
                self._say(str(error))
                continue
            ready_at = time.monotonic()
            self._record(spec, watched, state="ready", restarts=restarts, last_exit=status)
            self._say(f"{spec.name} is up again")

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


async def _until_ready(spec: DaemonSpec, watched: Watched, logged: int, say: Callable[[str], None]) -> None:
    """Return when the probe is content, telling what goes on: after 5 s, then when it changes, and every 15 s.

    `logged` is the log's size before this start.
    Raises Unavailable, with its last words, when the process ends first or its time is over.
    """
    began = time.monotonic()
    tell_at, told = began + _TELL_FIRST_S, None
    while True:
        try:
            if await spec.ready():
                return
        except (SpaceError, OSError):
            pass  # not there yet
        if not watched.alive:
            raise Unavailable(_failure(spec, f"could not start: it {_ended(await watched.wait())}", logged))
        now = time.monotonic()
        if now - began > spec.start_timeout_s:
            raise Unavailable(_failure(spec, f"is not ready after {spec.start_timeout_s:.0f} s", logged))
        doing = _doing(spec, logged) if spec.doing else ""
        if now > tell_at or told not in (None, doing):
            tell_at, told = now + _TELL_S, doing
            say(f"{spec.name} is starting ({now - began:.0f} s){': ' if doing else ''}{doing}")
        await asyncio.sleep(_PROBE_S)


def _ended(status: int | None) -> str:
    if status is None:
        return "ended"
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _failure(spec: DaemonSpec, what: str, logged: int) -> str:
    words = last_words(_lines(spec.log_file, logged))
    return "\n".join([f"{spec.name} {what}.", *words, f"Its whole log: {spec.log_file}"])


def last_words(lines: list[str]) -> list[str]:
    """Return the end of a log, for a person.

    Our processes end with a plain line that says what to do, below events in JSON. Of a traceback, the error counts.
    """
    plain: list[str] = []
    for line in reversed(lines):
        if line.startswith("{"):
            break
        plain.insert(0, line)
    if any(line.lstrip(" +|").startswith(("Traceback ", "Exception Group Traceback ")) for line in plain):
        plain = [bare for line in plain if (bare := line.strip(" +|-"))]
        # what an error says may have lines of its own, as nft's, the last of which marks a place in the one above
        begins = [number for number, line in enumerate(plain) if _ERROR.match(line)]
        plain = plain[begins[-1] if begins else -1 :][:_LAST_LINES]
    return (plain or lines)[-_LAST_LINES:]


def _doing(spec: DaemonSpec, logged: int) -> str:
    """Return the words for the last thing in the log that there are words for."""
    events = map(_event, reversed(_lines(spec.log_file, logged)))
    return next((words for event in events if (words := spec.doing.get(event))), "")


def _event(line: str) -> str:
    """Return a line of a log of ours as `event fact=value ...`; nothing for any other line."""
    try:
        facts = json.loads(line)
        event = facts.pop("event")
    except (ValueError, KeyError, AttributeError, TypeError):
        return ""
    return " ".join([event, *(f"{name}={value}" for name, value in facts.items() if name not in _ALWAYS)])


def _log_size(spec: DaemonSpec) -> int:
    try:
        return spec.log_file.stat().st_size
    except FileNotFoundError:
        return 0


def _lines(path: Path, logged: int) -> list[str]:
    """Return the last lines of a log that were written since it had `logged` bytes."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, logged, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return []
