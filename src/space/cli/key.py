"""`space key ...`: the API keys."""

import asyncio
from typing import Annotated

import typer

from space.cli import output
from space.cli.client import Json, connect
from space.cli.output import Format
from space.cli.sandbox import Out
from space.settings import client_settings

app = typer.Typer(no_args_is_help=True, help="API keys.")


@app.command("create")
def create(
    label: Annotated[str, typer.Argument(help="What it is for, to tell it from others.")], out: Out = Format.TABLE
) -> None:
    """Make a key; it is shown this once, only its hash is kept."""

    async def act() -> Json:
        async with connect(client_settings()) as api:
            return await api.post("/v1/keys", {"label": label})

    made = asyncio.run(act())
    if out is Format.JSON:
        output.print_json(made)
    else:
        print(made["key"])


@app.command("ls")
def list_(out: Out = Format.TABLE) -> None:
    """List the keys, without their secrets."""

    async def act() -> list[Json]:
        async with connect(client_settings()) as api:
            return await api.pages("/v1/keys", "keys", {})

    found = asyncio.run(act())
    if out is Format.JSON:
        output.print_json(found)
        return
    columns = ("id", "label", "created_at", "last_used_at", "revoked_at")
    output.print_table(columns, ([one.get(name) for name in columns] for one in found))


@app.command("rm")
def remove(key: Annotated[str, typer.Argument(metavar="ID", help="The key's id.")]) -> None:
    """Revoke a key at once."""

    async def act() -> None:
        async with connect(client_settings()) as api:
            await api.call("DELETE", f"/v1/keys/{key}")

    asyncio.run(act())
