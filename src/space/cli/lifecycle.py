"""`space sandbox pause|resume|suspend|restore|fork|snapshot|set`, and `space snapshot ...`."""

import asyncio
from typing import Annotated, NoReturn

import typer

from space.cli import output
from space.cli.client import Json, connect
from space.cli.deadlines import AtEnd, AutoResume, Idle, Lifetime, deadlines
from space.cli.output import Format
from space.cli.run import given, parse_env
from space.cli.sandbox import Id, Ids, Out, app
from space.model.errors import InvalidArgument, from_problem
from space.settings import client_settings

snapshots = typer.Typer(no_args_is_help=True, help="Snapshots: frozen sandboxes that new ones can start from.")

DiskOnly = Annotated[bool, typer.Option("--disk-only", help="Without memory: what runs ends; it boots again.")]


def _each(sandboxes: list[str], verb: str, body: Json | None = None) -> None:
    async def act() -> None:
        async with connect(client_settings()) as api:
            for sandbox in sandboxes:
                await api.call("POST", f"/v1/sandboxes/{sandbox}/{verb}", body=body)

    asyncio.run(act())


@app.command("pause")
def pause(sandboxes: Ids) -> None:
    """Stop sandboxes; their memory stays in RAM, their streams stay open."""
    _each(sandboxes, "pause")


@app.command("resume")
def resume(sandboxes: Ids) -> None:
    """Let paused sandboxes go on, and bring suspended ones back."""
    _each(sandboxes, "resume")


@app.command("suspend")
def suspend(sandboxes: Ids, disk_only: DiskOnly = False) -> None:
    """Put sandboxes to storage; they take no RAM, and wake where they were."""
    _each(sandboxes, "suspend", {"memory": not disk_only})


@app.command("restore")
def restore(sandboxes: Ids) -> None:
    """Bring suspended sandboxes back where they were."""
    _each(sandboxes, "restore")


@app.command("set")
def set_(
    sandbox: Id,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="New labels.")] = None,
    lifetime: Lifetime = None,
    idle_timeout: Idle = None,
    on_timeout: AtEnd = None,
    auto_resume: AutoResume = None,
) -> None:
    """Change a sandbox's labels and deadlines; a lifetime counts from now."""
    body = deadlines(lifetime, idle_timeout, on_timeout, auto_resume) | given({"labels": parse_env(label) or None})
    if not body:
        raise InvalidArgument("There is nothing to change; see `space sandbox set --help`.")

    async def act() -> None:
        async with connect(client_settings()) as api:
            await api.call("PATCH", f"/v1/sandboxes/{sandbox}", body=body)

    asyncio.run(act())


@app.command("fork")
def fork(
    sandbox: Id,
    count: Annotated[int, typer.Option("--count", "-n", help="How many copies.")] = 1,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="Add to it.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="A label.")] = None,
    lifetime: Lifetime = None,
    idle_timeout: Idle = None,
    on_timeout: AtEnd = None,
    auto_resume: AutoResume = None,
    out: Out = Format.TABLE,
) -> None:
    """Make running copies of a sandbox, which goes on; prints their ids."""
    body = deadlines(lifetime, idle_timeout, on_timeout, auto_resume) | given(
        {"count": count, "env": parse_env(env) or None, "labels": parse_env(label) or None}
    )

    async def act() -> list[Json]:
        async with connect(client_settings()) as api:
            results: list[Json] = (await api.post(f"/v1/sandboxes/{sandbox}/fork", body))["results"]
            return results

    results = asyncio.run(act())
    if out is Format.JSON:
        output.print_json(results)
    else:
        for result in results:
            if result["sandbox"]:
                print(result["sandbox"]["id"])
    failed = [result["error"] for result in results if result["error"]]
    if failed:
        _fail(failed, len(results))


def _fail(errors: list[Json], count: int) -> NoReturn:
    first = from_problem(errors[0]["code"], errors[0]["detail"])
    raise type(first)(f"{len(errors)} of {count} copies could not be made: {first}")


@app.command("snapshot")
def snapshot(
    sandbox: Id,
    name: Annotated[str | None, typer.Option("--name", help="Name of the snapshot.")] = None,
    disk_only: DiskOnly = False,
    out: Out = Format.TABLE,
) -> None:
    """Freeze a copy of a sandbox, which goes on; `space run NAME` starts from it."""
    body = given({"name": name, "memory": not disk_only})

    async def act() -> Json:
        async with connect(client_settings()) as api:
            return await api.post(f"/v1/sandboxes/{sandbox}/snapshots", body)

    taken = asyncio.run(act())
    if out is Format.JSON:
        output.print_json(taken)
    else:
        print(f"{taken['name']} {taken['digest']}")


@snapshots.command("ls")
def list_(out: Out = Format.TABLE) -> None:
    """List the snapshots."""

    async def act() -> list[Json]:
        async with connect(client_settings()) as api:
            return await api.pages("/v1/snapshots", "snapshots", {})

    found = asyncio.run(act())
    if out is Format.JSON:
        output.print_json(found)
        return
    rows = (
        (
            one["name"],
            one["digest"][:19],
            "disk and memory" if one["memory"] else "disk",
            output.human_bytes(one["used_bytes"]),
            one["sandbox"],
            one["built_at"],
        )
        for one in found
    )
    output.print_table(("name", "digest", "holds", "used", "sandbox", "taken_at"), rows)


@snapshots.command("rm")
def remove(name: Annotated[str, typer.Argument(help="Name or digest.")]) -> None:
    """Remove a snapshot."""

    async def act() -> None:
        async with connect(client_settings()) as api:
            await api.call("DELETE", f"/v1/snapshots/{name}")

    asyncio.run(act())
