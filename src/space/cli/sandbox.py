"""`space sandbox ...`: create, list, look at, run in, copy, delete."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from space.cli import failure, output, terminal
from space.cli.client import Json, connect
from space.cli.copy import RemoteFiles, parse_remote
from space.cli.deadlines import AtEnd, AutoResume, Idle, Lifetime, deadlines
from space.cli.output import Format
from space.cli.policy_file import PolicyFile, Preset, chosen
from space.cli.run import Cwd, Env, Memory, Timeout, User, Vcpus, command_body, create, execute, given, parse_env
from space.model.errors import InvalidArgument, NotFound
from space.model.ids import is_id
from space.model.sandbox import MAX_LABEL_CHARS
from space.settings import client_settings

app = typer.Typer(no_args_is_help=True, help="Sandboxes: microVMs with an id.")


def _checked(text: str) -> str:
    if not is_id(text):
        raise NotFound(
            f"{text!r} is no id of a sandbox: 20 characters of a-z and 0-9, as `space sandbox ls` shows them."
        )
    return text


def _all_checked(texts: list[str]) -> list[str]:
    return [_checked(text) for text in texts]


_LABEL = f"For finding it again (ls --label). A name without ':'; both up to {MAX_LABEL_CHARS} characters."
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="The sandboxes' ids.", callback=_all_checked)]
Id = Annotated[str, typer.Argument(metavar="ID", help="The sandbox's id.", callback=_checked)]
UncheckedId = Annotated[str, typer.Argument(metavar="ID", help="The sandbox's id.")]
Out = Annotated[Format, typer.Option("-o", "--output", help="How to print.")]


@app.command("create")
def create_(
    template: Annotated[str, typer.Argument(help="Name of the template.")],
    env: Env = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help=_LABEL)] = None,
    vcpus: Vcpus = None,
    memory: Memory = None,
    lifetime: Lifetime = None,
    idle_timeout: Idle = None,
    on_timeout: AtEnd = None,
    auto_resume: AutoResume = None,
    policy: PolicyFile = None,
    preset: Preset = None,
    out: Out = Format.TABLE,
) -> None:
    """Create a sandbox and wait until it answers; prints its id."""
    wish = deadlines(lifetime, idle_timeout, on_timeout, auto_resume) | given(
        {
            "template": template,
            "vcpus": vcpus,
            "memory_mib": memory,
            "env": parse_env(env) or None,
            "labels": parse_env(label) or None,
            "policy": chosen(policy, preset),
        }
    )

    async def act() -> Json:
        async with connect(client_settings()) as api:
            return await create(api, wish)

    made = asyncio.run(act())
    if out is Format.JSON:
        output.print_json(made)
    else:
        print(made["id"])


@app.command("ls")
def list_(
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="Only with it.")
    ] = None,
    state: Annotated[str | None, typer.Option(help="Only in this state.")] = None,
    out: Out = Format.TABLE,
) -> None:
    """List the sandboxes."""
    labels = [f"{name}:{value}" for name, value in parse_env(label).items()]

    async def act() -> list[Json]:
        async with connect(client_settings()) as api:
            return await api.pages("/v1/sandboxes", "sandboxes", given({"label": labels or None, "state": state}))

    found = asyncio.run(act())
    if out is Format.JSON:
        output.print_json(found)
        return
    columns = (
        "id",
        "state",
        "template",
        "vcpus",
        "memory_mib",
        "created_at",
        "idle_since",
        "expires_at",
        "labels",
        "reason",
    )
    rows = ({**one, "labels": " ".join(f"{name}={value}" for name, value in one["labels"].items())} for one in found)
    output.print_table(columns, ([one.get(name) for name in columns] for one in rows))


@app.command("get")
def get(sandbox: Id, out: Out = Format.TABLE) -> None:
    """Show one sandbox."""

    async def act() -> Json:
        async with connect(client_settings()) as api:
            return await api.get(f"/v1/sandboxes/{sandbox}")

    found = asyncio.run(act())
    if out is Format.JSON:
        output.print_json(found)
    else:
        output.print_facts(found)


@app.command("exec")
def exec_(
    sandbox: UncheckedId,
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="After --: program and arguments.")],
    interactive: Annotated[bool, typer.Option("-i", "--interactive", help="Pass standard input on.")] = False,
    tty: Annotated[bool, typer.Option("-t", "--tty", help="Give it a terminal.")] = False,
    env: Env = None,
    timeout: Timeout = None,
    user: User = None,
    cwd: Cwd = None,
) -> None:
    """Run a command in a sandbox with live output.

    Exits with the command's status; 128 + n where signal n ended it, 124 where --timeout did; 127 where there is no
    such program, 126 where it cannot be started, 125 for every other error of ours.
    """
    with failure.beside_a_command():
        _checked(sandbox)
        if tty and interactive and not sys.stdin.isatty():
            raise InvalidArgument("Standard input is not a terminal; leave out -t.")
        body = command_body(command, env, timeout, user, cwd)
        raise typer.Exit(asyncio.run(_execute(sandbox, body, stdin=interactive, tty=tty)))


@app.command("shell")
def shell(
    sandbox: UncheckedId,
    program: Annotated[str, typer.Option(help="The shell.")] = "/bin/bash",
    user: User = None,
    cwd: Cwd = None,
) -> None:
    """Open a terminal in a sandbox; exits as `exec` does."""
    with failure.beside_a_command():
        _checked(sandbox)
        if not sys.stdin.isatty():
            raise InvalidArgument(
                "A shell needs a terminal, and standard input is none. To run a script from it: "
                f"space sandbox exec -i {sandbox} -- {program}"
            )
        body = command_body([program, "-l"], None, None, user, cwd)
        raise typer.Exit(asyncio.run(_execute(sandbox, body, stdin=True, tty=True)))


@app.command("cp")
def copy(
    source: Annotated[str, typer.Argument(help="A local path, or ID:PATH.")],
    target: Annotated[str, typer.Argument(help="A local path, or ID:PATH.")],
    user: Annotated[
        str | None, typer.Option("--user", "-u", help="Who owns what is written, and whose home paths start from.")
    ] = None,
) -> None:
    """Copy a file or folder between this machine and a sandbox.

    A single file is read and written by the sandbox's agent, which is root there, so any path can be named; new files
    belong to USER (default: user). A folder is packed or unpacked by a command that runs as USER.
    """
    here, there = parse_remote(source), parse_remote(target)
    if (here is None) == (there is None):
        raise InvalidArgument("One of the two must be ID:PATH (a sandbox's id has 20 characters), the other local.")

    async def act() -> None:
        async with connect(client_settings()) as api:
            if there is not None:
                await RemoteFiles(api, there[0], user).upload(Path(source), there[1])
            elif here is not None:
                await RemoteFiles(api, here[0], user).download(here[1], Path(target))

    asyncio.run(act())


@app.command("rm")
def remove(
    sandboxes: Ids,
) -> None:
    """Delete sandboxes, in any state; fine when one is deleted already."""

    async def act() -> None:
        async with connect(client_settings()) as api:
            for sandbox in sandboxes:
                await api.call("DELETE", f"/v1/sandboxes/{sandbox}")

    asyncio.run(act())


async def _execute(sandbox: str, body: Json, *, stdin: bool, tty: bool) -> int:
    if tty:
        columns, rows = terminal.size()
        body = {**body, "pty": {"cols": columns, "rows": rows}}
    async with connect(client_settings()) as api:
        if not (tty and stdin):
            return await execute(api, sandbox, body, stdin=stdin)
        with terminal.raw():
            return await execute(api, sandbox, body, stdin=True)
