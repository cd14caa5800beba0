"""The outermost layer of the api: the edge's question, a request id, authentication of `/v1`, figures, the last catch.

Plain ASGI, because it is on the path of every request through the edge.
"""

import time

import structlog
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from space.api.access import Access
from space.api.authz import PREFIX, decide
from space.api.metrics import Metrics
from space.model.ids import new_id
from space.wire.serving import answer

OPEN = {"/healthz", "/readyz", "/openapi.json"}
"""What needs no key. An unknown path does: it is nobody's business what there is."""

CALLER = "space.caller"
"""Where the caller's ApiKey is in the scope of an authenticated request."""


class Front:
    """The ASGI application that the server runs."""

    def __init__(self, app: FastAPI, access: Access, metrics: Metrics) -> None:
        self._app, self._access, self._metrics = app, access, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            raise NotImplementedError(f"The api speaks HTTP only, not {scope['type']}.")
        if scope["path"].startswith(PREFIX + "/"):
            await self._decide(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _decide(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: bytes = scope["raw_path"]
        try:
            headers = await decide(self._access, path.removeprefix(PREFIX.encode()), dict(scope["headers"]))
        except Exception as error:  # noqa: BLE001 - whatever it is, the edge gets an answer, and it is no
            refusal = answer(error)
            self._metrics.decisions.labels(refusal.status_code).inc()
            await refusal(scope, receive, send)
            return
        self._metrics.decisions.labels(200).inc()
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, (b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id, began, status = new_id(), time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        with structlog.contextvars.bound_contextvars(request=request_id):
            try:
                if scope["path"] not in OPEN:
                    scope[CALLER] = await self._access.caller(dict(scope["headers"]))
                await self._app(scope, receive, sending)
            except Exception as error:  # noqa: BLE001 - the last catch
                # Starlette raises again what its handler has answered already; then there is nothing left to do.
                if status == 0:
                    await answer(error)(scope, receive, sending)
        route = getattr(scope.get("route"), "path", "none")
        took = time.perf_counter() - began
        self._metrics.requests.labels(scope["method"], route, status).observe(took)
