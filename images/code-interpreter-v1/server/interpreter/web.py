"""The HTTP interface, on port 49999 of a sandbox.

Tornado serves it: jupyter_client brings it along, so it costs no memory and no dependency of its own. There is no
authentication here: who may reach the port is the edge's to say.
"""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

from tornado import httputil, iostream, web

from interpreter import lines
from interpreter.context import Run
from interpreter.contexts import Contexts, Refused
from interpreter.kernel import KernelFailed

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Code with data in it may be long; a file is the better place for more."""


def application(contexts: Contexts, tasks: asyncio.TaskGroup) -> web.Application:
    """Return the application; runs go on in `tasks`, so that a client that leaves takes none with it."""
    shared = {"contexts": contexts, "tasks": tasks}
    return web.Application(
        [
            ("/health", Health, shared),
            ("/execute", Execute, shared),
            ("/contexts", ContextList, shared),
            ("/contexts/([^/]+)", OneContext, shared),
            ("/contexts/([^/]+)/restart", Restart, shared),
        ],
        default_handler_class=Nowhere,
    )


class Handler(web.RequestHandler):
    """What all have in common: refusals are plain text, which the SDKs show as it is."""

    def initialize(self, contexts: Contexts, tasks: asyncio.TaskGroup) -> None:
        """Take what all handlers share."""
        self.contexts, self.tasks = contexts, tasks

    def set_default_headers(self) -> None:
        """Let pages of other origins use it, as E2B does."""
        self.set_header("Access-Control-Allow-Origin", "*")

    def write_error(self, status_code: int, **more: Any) -> None:
        """Say what was wrong, in plain text."""
        cause = more.get("exc_info", (None, None, None))[1]
        said = (cause.log_message if isinstance(cause, web.HTTPError) else None) or httputil.responses[status_code]
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{said}\n")

    def body(self) -> dict[str, Any]:
        """Return the request's object; fields that are not known are ignored. Raises HTTPError."""
        try:
            found = json.loads(self.request.body or b"{}")
        except ValueError:
            raise web.HTTPError(400, "The body is not JSON") from None
        if not isinstance(found, dict):
            raise web.HTTPError(400, "The body is not a JSON object")
        return found

    async def carried_out(self, work: Awaitable[Any]) -> Any:
        """Return what `work` gives, or refuse as it says."""
        try:
            return await work
        except Refused as refused:
            raise web.HTTPError(refused.status, str(refused).replace("%", "%%")) from None
        except KernelFailed as failed:
            raise web.HTTPError(500, str(failed).replace("%", "%%")) from None


class Nowhere(web.RequestHandler):
    """Any other path."""

    def prepare(self) -> None:
        """Refuse."""
        self.set_status(404)
        self.finish("Not Found\n")


class Health(Handler):
    """`GET /health`: the server is up."""

    def get(self) -> None:
        """Answer."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("OK\n")


class Execute(Handler):
    """`POST /execute`: run code and stream what it tells, one JSON object a line."""

    run: Run | None = None

    async def post(self) -> None:
        """Run; the answer begins when the code does."""
        asked = self.body()
        code, env = _string(asked, "code", ""), _variables(asked)
        identity, language = _string(asked, "context_id", None), _string(asked, "language", None)
        if identity and language:
            raise web.HTTPError(400, "Give either context_id or language, not both")
        context = await self.carried_out(self._context(identity, language))
        self.set_header("Content-Type", "application/x-ndjson")
        self.set_header("X-Accel-Buffering", "no")
        self.run = Run(code or "", env)
        self.tasks.create_task(context.run(self.run))
        try:
            await self.flush()  # a run that waits its turn is no request without an answer
            async for line in self.run.lines():
                self.write(lines.encode(line))
                await self.flush()
        except iostream.StreamClosedError:
            self.run.left.set()

    async def _context(self, identity: str | None, language: str | None) -> Any:
        return self.contexts.find(identity) if identity else self.contexts.default(language)

    def on_connection_close(self) -> None:
        """Interrupt what nobody waits for."""
        if self.run is not None:
            self.run.left.set()
            self.run.end()


class ContextList(Handler):
    """`/contexts`: list and create."""

    def get(self) -> None:
        """List."""
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps([_shown(one) for one in self.contexts.list()]))

    async def post(self) -> None:
        """Create."""
        asked = self.body()
        wish = self.contexts.create(_string(asked, "language", None), _string(asked, "cwd", None))
        self.finish(_shown(await self.carried_out(wish)))


class OneContext(Handler):
    """`/contexts/{id}`: remove."""

    async def delete(self, identity: str) -> None:
        """Remove."""
        await self.carried_out(self.contexts.remove(identity))
        self.set_status(204)
        self.finish()


class Restart(Handler):
    """`/contexts/{id}/restart`: begin anew."""

    async def post(self, identity: str) -> None:
        """Restart."""
        await self.carried_out(self._restart(identity))
        self.finish(_shown(self.contexts.find(identity)))

    async def _restart(self, identity: str) -> None:
        await self.contexts.find(identity).restart()


def _shown(context: Any) -> dict[str, str]:
    return {"id": context.id, "language": context.language, "cwd": context.cwd}


def _string(asked: dict[str, Any], name: str, otherwise: str | None) -> str | None:
    value = asked.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, str):
        raise web.HTTPError(400, f"{name} is not a string")
    return value


def _variables(asked: dict[str, Any]) -> dict[str, str]:
    found = asked.get("env_vars") or {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise web.HTTPError(400, "env_vars is not an object of strings")
    if bad := [name for name, value in found.items() if not name or set(name + value) & {"\0"} or "=" in name]:
        raise web.HTTPError(400, f"env_vars: {bad[0]!r} cannot be a variable")
    return found
