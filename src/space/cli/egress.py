"""`space egress ...`: what was decided about a sandbox's traffic, and requests that wait for somebody's answer."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Annotated

import typer

from space.cli import output
from space.cli.client import Json, connect, ndjson
from space.cli.output import Format
from space.cli.sandbox import Id, Out
from space.settings import client_settings

app = typer.Typer(no_args_is_help=True, help="Egress: what left a sandbox and what did not.")

_PAGE = 5000
Ask = Annotated[int, typer.Argument(metavar="ASK", help="The number that `space egress asks` shows.")]


@app.command("log")
def log(
    sandbox: Id,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it happens, until Ctrl-C.")] = False,
    denied: Annotated[bool, typer.Option("--denied", help="Only what was refused.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
    out: Out = Format.TABLE,
) -> None:
    """Show what was decided about a sandbox's traffic, a line each, oldest first."""

    async def act() -> None:
        async with contextlib.aclosing(events_of(sandbox, after, follow=follow)) as events:
            async for event in events:
                if not denied or event.get("allowed") is False:
                    print(json.dumps(event) if out is Format.JSON else output.printable(line_of(event)), flush=True)

    asyncio.run(act())


async def events_of(sandbox: str, after: int = 0, *, follow: bool = False) -> AsyncGenerator[Json]:
    """Yield what is kept of what was decided about a sandbox's traffic; with `follow` also what comes."""
    path, size = f"/v1/sandboxes/{sandbox}/egress", _PAGE
    async with connect(client_settings()) as api:
        while follow or size == _PAGE:
            params = {"after": after, "follow": 1} if follow else {"after": after, "limit": _PAGE}
            size = 0
            async with api.stream("GET", path, params=params) as answer:
                async for event in ndjson(answer):
                    if event["type"] != "keepalive":
                        after, size = event["number"], size + 1
                        yield event


def line_of(event: Json) -> str:
    """Return an event in a line."""
    verdict = event["type"] if event.get("allowed") is None else "allowed" if event["allowed"] else "denied"
    where = event.get("name") or event.get("address", "")
    port = f":{event['port']}" if event.get("port") else ""
    what = f"{event.get('protocol', '')}://{where}{port}{event.get('path', '')}" if where else ""
    parts = [event["time"], f"#{event['number']}", verdict, event.get("method", ""), what, event.get("why", "")]
    figures = ("status", "sent_bytes", "received_bytes", "ms", "count")
    parts += [f"{name}={event[name]}" for name in figures if event.get(name) is not None]
    return " ".join(part for part in parts if part)


@app.command("asks")
def asks(sandbox: Id, out: Out = Format.TABLE) -> None:
    """List the requests that wait for an answer (`ask` in the policy)."""

    async def act() -> list[Json]:
        async with connect(client_settings()) as api:
            return await api.pages(f"/v1/sandboxes/{sandbox}/asks", "asks", {})

    found = asyncio.run(act())
    if out is Format.JSON:
        output.print_json(found)
        return
    columns = ("id", "until", "method", "protocol", "host", "port", "path")
    output.print_table(columns, ([one.get(column) for column in columns] for one in found))


@app.command("allow")
def allow(sandbox: Id, ask: Ask) -> None:
    """Let a request that waits go, this once."""
    asyncio.run(_answer(sandbox, ask, allowed=True))


@app.command("deny")
def deny(sandbox: Id, ask: Ask) -> None:
    """Refuse a request that waits, now."""
    asyncio.run(_answer(sandbox, ask, allowed=False))


async def _answer(sandbox: str, ask: int, *, allowed: bool) -> None:
    async with connect(client_settings()) as api:
        await api.call("POST", f"/v1/sandboxes/{sandbox}/asks/{ask}", body={"allow": allowed})
