"""`space run`, and what it shares with `space sandbox exec` and `shell`: one command, live, with its exit status."""

import asyncio
import contextlib
import math
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from space.cli import failure, output, terminal
from space.cli.client import Api, Json, connect
from space.cli.commands import Command
from space.cli.deadlines import Lifetime, deadlines
from space.cli.policy_file import PolicyFile, Preset, chosen
from space.model.errors import InvalidArgument, SpaceError, Unavailable
from space.model.ids import new_id
from space.model.sandbox import DEFAULT_MEMORY_MIB, DEFAULT_VCPUS
from space.settings import ClientSettings, client_settings

INTERRUPTED = 130
T = TypeVar("T")

Env = Annotated[list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="Set in the environment.")]
Vcpus = Annotated[int | None, typer.Option(help=f"Virtual CPUs (default: {DEFAULT_VCPUS}).")]
Memory = Annotated[int | None, typer.Option(metavar="MIB", help=f"Memory in MiB (default: {DEFAULT_MEMORY_MIB}).")]
Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="End the command after this time, with exit status 124.")
]
User = Annotated[str | None, typer.Option("--user", "-u", help="User in the guest (default: user).")]
Cwd = Annotated[str | None, typer.Option("--cwd", "-w", metavar="DIR", help="Working directory in the guest.")]


def run(
    template: Annotated[str, typer.Argument(help="Name of the template.")],
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="After --: program and arguments.")],
    env: Env = None,
    vcpus: Vcpus = None,
    memory: Memory = None,
    lifetime: Lifetime = None,
    timeout: Timeout = None,
    user: User = None,
    cwd: Cwd = None,
    policy: PolicyFile = None,
    preset: Preset = None,
) -> None:
    """Run one command in a fresh sandbox, which is deleted afterwards.

    Standard input is passed on when it is not a terminal. Ctrl-C interrupts the command; twice, it gives up.

    Exits with the command's status; 128 + n where signal n ended it, 124 where --timeout did; 127 where there is no
    such program, 126 where it cannot be started, 125 for every other error of ours.
    """
    with failure.beside_a_command():
        wish = deadlines(lifetime, None, None, None) | {
            "template": template,
            "vcpus": vcpus,
            "memory_mib": memory,
            "policy": chosen(policy, preset),
        }
        body = command_body(command, env, timeout, user, cwd)
        raise typer.Exit(asyncio.run(_run(client_settings(), given(wish), body)))


async def _run(settings: ClientSettings, wish: Json, body: Json) -> int:
    async with connect(settings) as api, sandbox(api, wish) as made:
        return await execute(api, made["id"], body, stdin=not sys.stdin.isatty())


@contextlib.asynccontextmanager
async def sandbox(api: Api, wish: Json) -> AsyncGenerator[Json]:
    """Create a sandbox and delete it at the end, whatever happens inside.

    Ctrl-C while it is made waits for it to be there, since only then can it be deleted; while it is deleted, Ctrl-C and
    a terminal that is closed change nothing.
    """
    interrupted = asyncio.Event()
    with terminal.on_end(interrupted.set):
        try:
            made = await create(api, wish)
        except SpaceError as error:
            if error.sandbox is not None:  # it did not start, the error says why, and nobody will look at what stays
                with contextlib.suppress(SpaceError):
                    await api.call("DELETE", f"/v1/sandboxes/{error.sandbox}")
            raise
    try:
        if interrupted.is_set():
            raise typer.Exit(INTERRUPTED)
        yield made
    finally:
        with terminal.on_signal(signal.SIGINT, interrupted.set), terminal.on_signal(signal.SIGTERM, interrupted.set):
            await _patiently(lambda: api.call("DELETE", f"/v1/sandboxes/{made['id']}"))


async def create(api: Api, wish: Json) -> Json:
    """Create a sandbox and return it; tried again where the connection broke, under one idempotency key."""
    headers = {"idempotency-key": new_id()}
    answer = await _patiently(lambda: api.call("POST", "/v1/sandboxes", body=wish, headers=headers))
    made: Json = answer.json()
    return made


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call that may be repeated; where SPACE does not answer, again after 0, 1 and 2 s."""
    for pause_s in range(3):
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(pause_s)
    return await call()


async def execute(api: Api, sandbox_id: str, body: Json, *, stdin: bool) -> int:
    """Run a command to its end with live output and return its exit status.

    `stdin` passes our standard input on. The first Ctrl-C and SIGTERM go to the command, the second gives up on it, and
    so does the end of our terminal.
    """
    command = Command(api, sandbox_id)
    terminal_wanted = "pty" in body
    async with asyncio.TaskGroup() as group:
        running = group.create_task(command.run({**body, "stdin": stdin}, _write))
        feeding = group.create_task(command.feed(terminal.stdin_chunks())) if stdin else None
        interrupts = 0

        def give_up() -> None:
            running.cancel()

        def interrupt(name: str) -> None:
            nonlocal interrupts
            interrupts += 1
            if interrupts == 1:
                group.create_task(command.send_signal(name))
            else:
                give_up()

        def resize() -> None:
            if terminal_wanted:
                group.create_task(command.resize(*terminal.size()))

        with (
            terminal.on_signal(signal.SIGINT, lambda: interrupt("SIGINT")),
            terminal.on_signal(signal.SIGTERM, lambda: interrupt("SIGTERM")),
            terminal.on_signal(signal.SIGHUP, give_up),
            terminal.on_signal(signal.SIGWINCH, resize),
        ):
            await asyncio.wait([running])
        if feeding is not None:
            feeding.cancel()
    if running.cancelled():
        return INTERRUPTED
    ended = running.result()
    if ended.timed_out:
        output.say(f"the command was ended: it was not done after {body['timeout_s']:g} s (--timeout)")
    return ended.status


def _write(stream: str, data: bytes) -> None:
    if stream == "gap":
        output.say(f"warning: {data.decode()}")
        return
    target = sys.stderr.buffer if stream == "stderr" else sys.stdout.buffer
    target.write(data)
    target.flush()


def command_body(
    command: list[str], env: list[str] | None, timeout: float | None, user: str | None, cwd: str | None
) -> Json:
    """Return the body that starts a command, with only what was given; raises InvalidArgument."""
    if timeout is not None and not math.isfinite(timeout):
        raise InvalidArgument("--timeout: a number of seconds is meant; leave it out for none.")
    body = {"args": command, "env": parse_env(env) or None, "timeout_s": timeout, "user": user, "cwd": cwd}
    return given(body)


def parse_env(pairs: list[str] | None) -> dict[str, str]:
    """Return NAME=VALUE pairs as a dictionary; raises InvalidArgument for one without `=`."""
    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidArgument(f"{pair!r} is not NAME=VALUE.")
        found[name] = value
    return found


def given(values: Json) -> Json:
    return {name: value for name, value in values.items() if value is not None}
