"""What a client of SPACE does, and how long it waits: through the edge, like any other."""

import dataclasses
import time

import httpx2
from bench.figures import ms_since
from tests.support.deployment import Deployment, Json

from space.host.tasks import together

ECHO: Json = {"args": ["echo", "hi"]}
SHELL: Json = {"cmd": "echo hi"}
"""Run by `bash -lc`: the shell and its profile are part of what is waited for."""
WAYS = ("spare", "clone", "boot")
"""How a create got its VM, as its `timings_ms` tell."""


class Refused(Exception):
    """SPACE did not do what it was asked."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """A new sandbox and its first output. `worker_ms` is the worker's part of the create."""

    sandbox: str
    way: str
    create_ms: float
    command_ms: float
    total_ms: float
    worker_ms: float


async def start(space: Deployment, command: Json, **body: object) -> Start:
    """Create a sandbox and run its first command; raises Refused."""
    began = time.monotonic()
    found = await ask(space, "POST", "/v1/sandboxes", {"template": "base", **body})
    create_ms = ms_since(began)
    command_ms = await output_ms(space, found["id"], command)
    timings = found["timings_ms"]
    return Start(
        sandbox=found["id"],
        way=next((way for way in WAYS if way in timings), "other"),
        create_ms=create_ms,
        command_ms=command_ms,
        total_ms=create_ms + command_ms,
        worker_ms=timings["total"],
    )


async def output_ms(space: Deployment, sandbox: str, command: Json) -> float:
    """Run a command and return the milliseconds until its first output; raises Refused unless it ends with 0."""
    began = time.monotonic()
    shown: float | None = None
    code: int | None = None
    try:
        async for line in space.lines(sandbox, **command):
            if line["type"] == "stdout" and shown is None:
                shown = ms_since(began)
            elif line["type"] == "exit":
                code = line["code"]
    except (AssertionError, httpx2.TransportError) as error:
        raise Refused(f"{command} in {sandbox}: {error!r}") from error
    if shown is None or code != 0:
        raise Refused(f"{command} in {sandbox} ended with {code}")
    return shown


async def verb_ms(space: Deployment, sandbox: str, verb: str) -> float:
    """Ask for a lifecycle change (`pause`, `suspend`...), wait until it is done, and return the milliseconds."""
    began = time.monotonic()
    await ask(space, "POST", f"/v1/sandboxes/{sandbox}/{verb}")
    return ms_since(began)


async def delete(space: Deployment, sandbox: str) -> float:
    """Delete a sandbox and return the milliseconds."""
    began = time.monotonic()
    await ask(space, "DELETE", f"/v1/sandboxes/{sandbox}")
    return ms_since(began)


async def delete_all(space: Deployment) -> None:
    """Delete every sandbox there is, at once; this deployment is a bench's own."""

    async def end(sandbox: str) -> None:
        await delete(space, sandbox)

    while found := (await ask(space, "GET", "/v1/sandboxes"))["sandboxes"]:
        await together(*(end(sandbox["id"]) for sandbox in found))


async def ask(space: Deployment, method: str, path: str, body: Json | None = None) -> Json:
    """Make a request and return the answer's object; raises Refused."""
    try:
        answer = await space.http.request(method, path, json=body)
    except httpx2.TransportError as error:
        raise Refused(f"no answer to {method} {path}: {error!r}") from error
    if not answer.is_success:
        raise Refused(f"{method} {path.rpartition('/')[2]}: {_problem(answer)}")
    found: Json = answer.json() if answer.content else {}
    return found


def _problem(answer: httpx2.Response) -> str:
    """Return what stays the same when the same thing goes wrong again: code, and the first sentence of the detail."""
    try:
        problem = answer.json()
        return f"{answer.status_code} {problem['code']}: {problem['detail'].partition('. ')[0]}"
    except (ValueError, KeyError):
        return f"{answer.status_code}: {answer.text[:200]}"
