"""`space template ...`: build, list and remove what sandboxes start from."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from space.cli import output, template_build
from space.cli.client import Json, connect, ndjson
from space.cli.output import Format
from space.cli.sandbox import Out
from space.model.errors import InvalidArgument, Unavailable, from_problem
from space.model.template import DEFAULT_DISK_MIB
from space.settings import client_settings

app = typer.Typer(no_args_is_help=True, help="Templates: what sandboxes start from.")

_RECIPE = "Without -f: what it is made of (default: the recipe of this name, else base)."
_DISK = f"Size of the disk that guests see; sparse (default: {DEFAULT_DISK_MIB})."
_FILE = "Build as this Dockerfile says (docs/howto/templates.md has what it may say)."
_CONTEXT = "With -f: the folder that COPY copies from (default: that of the file)."
_START = "With -f: what is started at each boot, in place of CMD and ENTRYPOINT."
_READY = "With -f: what succeeds once it is ready to be saved."
_BUILD_SILENCE_S = 900.0


@app.command("build")
def build(
    name: Annotated[str, typer.Argument(help="A recipe: base or code-interpreter-v1; with -f any name, or name:tag.")],
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help=_FILE)] = None,
    folder: Annotated[Path | None, typer.Option("--context", metavar="DIR", help=_CONTEXT)] = None,
    tag: Annotated[list[str] | None, typer.Option(help="With -f: another tag; can be repeated.")] = None,
    start: Annotated[str | None, typer.Option(metavar="COMMAND", help=_START)] = None,
    ready: Annotated[str | None, typer.Option(metavar="COMMAND", help=_READY)] = None,
    vcpus: Annotated[int | None, typer.Option(help="With -f: of sandboxes that ask for none.")] = None,
    memory: Annotated[int | None, typer.Option(metavar="MIB", help="With -f: likewise.")] = None,
    disk: Annotated[int | None, typer.Option(metavar="MIB", help=_DISK)] = None,
    recipe: Annotated[str | None, typer.Option(metavar="RECIPE", help=_RECIPE)] = None,
    force: Annotated[bool, typer.Option(help="Build again although nothing changed.")] = False,
    out: Out = Format.TABLE,
) -> None:
    """Build a template, by a recipe of ours or as a Dockerfile says; its log goes to standard error while it runs."""
    of_file = {
        "--context": folder,
        "--tag": tag,
        "--start": start,
        "--ready": ready,
        "--vcpus": vcpus,
        "--memory": memory,
    }
    if file is None:
        given = next((option for option, value in of_file.items() if value is not None), None)
        if given is not None:
            raise InvalidArgument(f"{given} goes with a file: -f FILE.")
        wish: Json = {"name": name, "force": force, **({"disk_mib": disk} if disk else {})}
        if recipe is not None:
            wish["recipe"] = recipe
        done = asyncio.run(_build(wish))
        if out is Format.JSON:
            output.print_json(done)
            return
        template = done["template"]
        how = "was there already" if done["cached"] else f"built in {template['build_s']:.1f} s"
        print(f"{template['name']} {template['digest']} {how}")
        return
    if disk is not None:
        raise InvalidArgument("--disk does not go with a file: the disk has the size of what it is built on.")
    if recipe is not None:
        raise InvalidArgument("--recipe does not go with a file, which says what the template is made of.")
    steps = template_build.read(file)
    wish = {"name": name, "tags": tag or [], "ready": ready, "vcpus": vcpus, "memory_mib": memory, "force": force}
    if start is not None:
        wish["start"] = start
    built = asyncio.run(template_build.build(steps, folder or file.parent, wish))
    if out is Format.JSON:
        output.print_json(built)
        return
    print(f"{built['name']}:{built['tags'][0]} {built['digest']}")


async def _build(wish: Json) -> Json:
    """Return the last line of the build; raises what made it fail."""
    async with (
        connect(client_settings()) as api,
        api.stream("POST", "/v1/templates", body=wish, silence_s=_BUILD_SILENCE_S) as answer,
    ):
        async for line in ndjson(answer):
            match line["type"]:
                case "log":
                    output.say(
                        f"{line['at_s']:7.1f} s  {output.printable(line['step'])}: {output.printable(line['text'])}"
                    )
                case "done":
                    return line
                case "failed":
                    raise from_problem(line["code"], line["detail"])
    raise Unavailable("The build's log ended early; start the build again.")


@app.command("ls")
def list_(out: Out = Format.TABLE) -> None:
    """List the built templates."""

    async def act() -> list[Json]:
        async with connect(client_settings()) as api:
            return await api.pages("/v1/templates", "templates", {})

    found = asyncio.run(act())
    if out is Format.JSON:
        output.print_json(found)
        return
    rows = (
        (
            one["name"],
            one["digest"][:19],
            output.human_bytes(one["used_bytes"]),
            one["kernel_release"],
            one["vmm"],
            one["built_at"],
        )
        for one in found
    )
    output.print_table(("name", "digest", "used", "kernel", "vmm", "built_at"), rows)


@app.command("rm")
def remove(name: Annotated[str, typer.Argument(help="Name or digest.")]) -> None:
    """Remove a template; sandboxes made from it go on."""

    async def act() -> None:
        async with connect(client_settings()) as api:
            await api.call("DELETE", f"/v1/templates/{name}")

    asyncio.run(act())
