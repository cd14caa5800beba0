"""`space template build -f FILE`: builds a template as a Dockerfile says, and shows how it goes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO

from space.cli import context, output
from space.cli.client import Api, Json, connect
from space.model.build import BASE, FINALIZE, Step
from space.model.dockerfile import Copy, Recipe, parse
from space.model.errors import InvalidArgument, NotFound, Unavailable, from_problem
from space.settings import client_settings

_POLL_S = 0.3
_UPLOAD_S = 3600.0
_CHUNK_BYTES = 256 * 1024
_LOST_S = 30.0
"""How long the API may not answer: it may be restarting, and says afterwards what has become of the build."""


def read(file: Path) -> Recipe:
    """Return what a Dockerfile says, and say on standard error what of it means nothing here."""
    try:
        recipe = parse(file.read_text())
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror}.") from error
    if recipe.passed_over:
        output.say(f"These mean nothing to a machine: {', '.join(recipe.passed_over)}.")
    return recipe


async def build(recipe: Recipe, folder: Path, wish: Json) -> Json:
    """Upload what is copied, have it built, show its log, and return the build; raises what made it fail.

    `wish` is the rest of the request: its name, tags, size, what is ready, and `force`.
    """
    async with connect(client_settings()) as api:
        steps = [await _step(api, folder, step) if isinstance(step, Copy) else _plain(step) for step in recipe.steps]
        body = {"source": recipe.source, "steps": steps, "start": recipe.start, **wish}
        made = (await api.call("POST", "/v1/template-builds", body=body)).json()
        return await _followed(api, made["id"], output.say)


def _plain(step: Step) -> Json:
    return {"kind": step.kind, "args": list(step.args), "force": step.force}


async def _step(api: Api, folder: Path, copy: Copy) -> Json:
    """Return a COPY whose files are there."""
    file, digest = await asyncio.to_thread(context.archive, folder, copy.source)
    with file:
        try:
            await api.call("GET", f"/v1/template-files/{digest}")
        except NotFound:
            output.say(f"Uploading {output.printable(copy.source)}.")
            await api.call("PUT", f"/v1/template-files/{digest}", content=_chunks(file), timeout_s=_UPLOAD_S)
    args = [copy.source.lstrip("/") or ".", copy.target, copy.owner, copy.mode]
    return {"kind": "COPY", "args": args, "files": digest}


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        yield chunk


async def _followed(api: Api, build: str, say: Callable[[str], None]) -> Json:
    """Show a build's log as it comes, and return the build when it has ended."""
    clock = asyncio.get_running_loop().time
    seen, answered = 0, clock()
    while True:
        try:
            found: Json = (await api.call("GET", f"/v1/template-builds/{build}", params={"after": seen})).json()
        except Unavailable:
            if clock() - answered > _LOST_S:
                raise
            await asyncio.sleep(_POLL_S)
            continue
        answered = clock()
        for line in found["lines"]:
            name = line["step"] if line["step"] in (BASE, FINALIZE) else f"step {line['step']}"
            say(f"{output.printable(name)}: {output.printable(line['text'])}")
        seen += len(found["lines"])
        if found["lines"]:
            continue
        if found["status"] == "ready":
            return found
        if found["status"] == "error":
            where = "" if found["reason_step"] in (None, BASE, FINALIZE) else f" in step {found['reason_step']}"
            raise from_problem(found["reason_code"], f"The build failed{where}: {found['reason']}")
        await asyncio.sleep(_POLL_S)
