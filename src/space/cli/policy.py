"""`space policy ...`: try policies out, set and show them, propose one from what was observed."""

import asyncio
import contextlib
import dataclasses
from typing import Annotated, get_args
from urllib.parse import urlsplit

import typer

from space.cli import output
from space.cli.client import Json, connect
from space.cli.egress import events_of
from space.cli.output import Format
from space.cli.policy_file import PolicyFile, Preset, chosen, read_policy
from space.cli.sandbox import Id, Out
from space.gateway.audit import MAX_PATH
from space.model.errors import InvalidArgument, NotFound
from space.model.policy import DEFAULT_PORTS, METHODS, WEBSOCKET, Considered, Protocol, Request, Verdict, explain
from space.model.policy_addresses import is_address
from space.model.policy_document import parse
from space.model.policy_names import canonical_host
from space.model.policy_suggest import Seen, suggest
from space.settings import client_settings

_SWITCHED = 101
"""HTTP status of a request that became a WebSocket."""

DENIED = 3
"""Exit status of `test` for a request that the policy refuses."""

app = typer.Typer(no_args_is_help=True, help="Egress policies: what may leave sandboxes.")


@app.command("test")
def try_out(
    url: Annotated[str, typer.Argument(help="https://host[:port]/path, http://..., or tcp://host-or-address:port.")],
    policy: PolicyFile = None,
    preset: Preset = None,
    ceiling: Annotated[str | None, typer.Option(metavar="FILE", help="A project's ceiling to go under.")] = None,
    method: Annotated[str, typer.Option("--method", "-X", help="Method of the request.")] = "GET",
    websocket: Annotated[bool, typer.Option(help="The request asks for a WebSocket.")] = False,
    out: Out = Format.TABLE,
) -> None:
    """Tell whether a policy lets a request out, and which rule decides. Needs no server.

    Exits with 0 where it does and 3 where it does not.
    """
    document = chosen(policy, preset) or {}
    if ceiling is not None:
        document = {**document, "ceiling": read_policy(ceiling)}
    request = request_of(url, method, websocket=websocket)
    verdict, considered = explain(parse(document), request)
    if out is Format.JSON:
        output.print_json(
            {
                "allowed": verdict.allowed,
                "why": verdict.why,
                "asks": verdict.ask,
                "observed": verdict.observed,
                "considered": [dataclasses.asdict(one) for one in considered],
            }
        )
    else:
        _print_verdict(verdict, considered)
    raise typer.Exit(0 if verdict.allowed else DENIED)


def _print_verdict(verdict: Verdict, considered: tuple[Considered, ...]) -> None:
    print(f"{'allowed' if verdict.allowed else 'denied'}: {verdict.why}{' (a person is asked)' if verdict.ask else ''}")
    for one in considered:
        print(f"  {one.label} ({one.action}): {one.mismatch or 'decides'}")


def request_of(url: str, method: str, *, websocket: bool) -> Request:
    """Return the request that a URL and a method stand for; raises InvalidArgument and InvalidName."""
    parts = urlsplit(url)
    protocols: dict[str, Protocol] = {protocol: protocol for protocol in get_args(Protocol)}
    protocol = protocols.get(parts.scheme)
    if protocol is None or not parts.hostname or parts.username is not None:
        raise InvalidArgument(f"{url!r} is no https://, http:// or tcp:// URL with a host.")
    try:
        port = parts.port or next((ports.first for ports in DEFAULT_PORTS[protocol]), None)
    except ValueError as error:
        raise InvalidArgument(f"{url!r}: {error}.") from error
    if port is None:
        raise InvalidArgument(f"{url!r} needs a port.")
    if method not in METHODS:
        raise InvalidArgument(f"{method!r} is no method that can leave: one of {', '.join(sorted(METHODS))}.")
    raw_address = protocol == "tcp" and is_address(parts.hostname)
    host = parts.hostname if raw_address else canonical_host(parts.hostname)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Request(protocol, host, port, method, target, WEBSOCKET if websocket else None)


@app.command("set")
def set_(sandbox: Id, policy: PolicyFile = None, preset: Preset = None) -> None:
    """Replace what may leave a sandbox; returns when it holds, and what it no longer allows has ended."""
    document = chosen(policy, preset)
    if document is None:
        raise InvalidArgument("Give --policy FILE, --preset NAME, or both.")

    async def act() -> Json:
        async with connect(client_settings()) as api:
            answer: Json = (await api.call("PUT", f"/v1/sandboxes/{sandbox}/policy", body=document)).json()
            return answer

    made = asyncio.run(act())
    output.say(f"generation {made['generation']}, {'in force' if made['applied'] else 'in force when it is restored'}")


@app.command("show")
def show(sandbox: Id) -> None:
    """Show what may leave a sandbox, as JSON."""

    async def act() -> Json:
        async with connect(client_settings()) as api:
            return await api.get(f"/v1/sandboxes/{sandbox}/policy")

    output.print_json(asyncio.run(act()))


@app.command("ceiling")
def ceiling_(
    policy: PolicyFile = None,
    preset: Preset = None,
    remove: Annotated[bool, typer.Option("--remove", help="Leave each sandbox to its own policy.")] = False,
) -> None:
    """Show what no sandbox of the project exceeds, as JSON; or replace it, for running ones too."""
    document = chosen(policy, preset)
    if remove and document is not None:
        raise InvalidArgument("Either --remove or a policy.")

    async def act() -> Json:
        async with connect(client_settings()) as api:
            if remove:
                await api.call("DELETE", "/v1/project/policy")
            elif document is not None:
                await api.call("PUT", "/v1/project/policy", body=document)
            return await api.get("/v1/project/policy")

    output.print_json(asyncio.run(act())["ceiling"])


@app.command("suggest")
def suggest_(sandbox: Id) -> None:
    """Propose a policy, as JSON, that allows what was let out of a sandbox so far (see `observe`), by the same way."""

    async def act() -> tuple[list[Json], Json]:
        async with contextlib.aclosing(events_of(sandbox)) as events:
            found = [event async for event in events]
        async with connect(client_settings()) as api:
            try:
                return found, (await api.get(f"/v1/sandboxes/{sandbox}/policy"))["policy"]
            except NotFound:  # deleted since
                return found, {}

    events, policy = asyncio.run(act())
    seen = seen_in(events)
    if not seen:
        raise InvalidArgument(
            'Nothing has left it yet. Put "observe": true into its policy and let it work for a while.'
        )
    output.print_json(suggest(seen) | way_of(events, policy))


def way_of(events: list[Json], policy: Json) -> Json:
    """Return by which way a policy sends what it allows; of one that is gone only the proxy's address is known."""
    vias = [event["via"] for event in events if event.get("via")]
    known = {} if policy or not vias else {"upstream_proxy": {"address": vias[-1]}}
    return known | {key: policy[key] for key in ("upstream_proxy", "dns_servers") if key in policy}


def seen_in(events: list[Json]) -> list[Seen]:
    """Return the requests and connections that events say were let out."""
    upgraded = {(one["boot"], one.get("of")) for one in events if one.get("status") == _SWITCHED}
    return [
        Seen(
            protocol=one["protocol"],
            host=one.get("name") or one["address"],
            port=one["port"],
            method=one.get("method", "GET"),
            path=one.get("path", "/"),
            websocket=(one["boot"], one["seq"]) in upgraded,
            cut=len(one.get("path", "")) >= MAX_PATH,
        )
        for one in events
        if one["type"] == "verdict" and one.get("allowed") and one.get("protocol") in get_args(Protocol)
    ]
