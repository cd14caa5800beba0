"""`space secret ...`: values that gateways add to requests. A value is never an argument: other users could see it."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from space.cli import output
from space.cli.client import Json, connect
from space.cli.output import Format
from space.cli.sandbox import Out
from space.model.errors import InvalidArgument
from space.model.secret import MAX_VALUE, check_name, check_value
from space.settings import client_settings

app = typer.Typer(no_args_is_help=True, help="Secrets: policies say where they go; sandboxes never see them.")


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="What policies call it: ${secrets.NAME}.")],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the value from there, not standard input.")
    ] = None,
) -> None:
    """Give a secret its first or next value, from standard input; a terminal is asked without showing it.

    Sandboxes that use it have it at their next request. One line end after the value does not belong to it.
    """
    check_name(name)
    value = _value(name, file)
    check_value(value)

    async def act() -> Json:
        async with connect(client_settings()) as api:
            return await api.post("/v1/secrets", {"name": name, "value": value})

    made = asyncio.run(act())
    output.say(f"{made['name']} version {made['version']}")


def _value(name: str, file: Path | None) -> str:
    if file is None and sys.stdin.isatty():
        asked: str = typer.prompt(f"Value of {name}", hide_input=True)
        return asked
    try:
        text = sys.stdin.read(MAX_VALUE + 2) if file is None else file.read_text()
    except UnicodeDecodeError:
        raise InvalidArgument("The value is no UTF-8 text.") from None
    return text.removesuffix("\n").removesuffix("\r")


@app.command("list", hidden=True)
@app.command("ls")
def list_(out: Out = Format.TABLE) -> None:
    """List the secrets, without their values."""

    async def act() -> list[Json]:
        async with connect(client_settings()) as api:
            return await api.pages("/v1/secrets", "secrets", {})

    found = asyncio.run(act())
    if out is Format.JSON:
        output.print_json(found)
        return
    columns = ("name", "version", "created_at", "updated_at")
    output.print_table(columns, ([one.get(column) for column in columns] for one in found))


@app.command("rm")
def remove(name: Annotated[str, typer.Argument(help="The secret's name.")]) -> None:
    """Remove a secret; requests that need it are refused from then on."""
    check_name(name)

    async def act() -> None:
        async with connect(client_settings()) as api:
            await api.call("DELETE", f"/v1/secrets/{name}")

    asyncio.run(act())
