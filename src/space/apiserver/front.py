"""The outermost layer: the edge's question, a request id, which surface, authentication, figures, the last catch.

Plain ASGI, because it is on the path of every request through the edge.
"""

import dataclasses
import re
import time
from collections.abc import Callable

import structlog
from fastapi.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from space.apiserver.edge_question import EdgeQuestion, refusing
from space.apiserver.question import Question
from space.control.access import CALLER, Access
from space.control.figures import Figures
from space.model.errors import NotFound
from space.model.ids import new_id
from space.wire.edge import PREFIX
from space.wire.serving import answer

_ESCAPED = re.compile(rb"%(?:2f|5c)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Surface:
    """One of the two APIs: what serves it, how it words an error, and which paths of it need no key.

    An unknown path needs one: it is nobody's business what there is. Below `open_below` the surface itself asks for
    something else; None is nowhere.
    """

    app: ASGIApp
    answer: Callable[[Exception], Response]
    open: frozenset[str]
    open_below: str | None = None

    def is_open(self, scope: Scope) -> bool:
        """Tell whether a request needs no key."""
        raw: bytes = scope["raw_path"]
        below = self.open_below is not None and raw.startswith(self.open_below.encode())
        return below or scope["path"] in self.open


class Front:
    """The ASGI application that the server runs. A path whose first part is in `parts` is the `e2b` surface's."""

    def __init__(
        self,
        api: Surface,
        e2b: Surface,
        parts: frozenset[str],
        access: Access,
        question: EdgeQuestion,
        figures: Figures,
    ) -> None:
        self._api, self._e2b, self._parts = api, e2b, parts
        self._access, self._question, self._figures = access, question, figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            raise NotImplementedError(f"The api speaks HTTP only, not {scope['type']}.")
        raw: bytes = scope["raw_path"]  # not `path`, in which `/internal%2Fauthz` of a client looks like the edge's
        if raw.startswith(PREFIX.encode() + b"/"):
            await self._decide(scope, receive, send)
        else:
            first = raw[1:].partition(b"/")[0].decode("latin-1")
            if first in self._parts:
                await self._serve(self._e2b, scope, receive, send)
            elif _ESCAPED.search(raw):
                # `/v1` has no use for it, and its routes are found by the decoded path
                await answer(NotFound("There is nothing at a path with an encoded slash or backslash."))(
                    scope, receive, send
                )
            else:
                await self._serve(self._api, scope, receive, send)

    async def _decide(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Question.of(scope["method"], scope["raw_path"], scope["query_string"], scope["headers"])
        try:
            verdict = await self._question.decide(asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, the edge gets an answer, and it is no
            refusal = refusing(error, asked)
            self._figures.decisions.labels(refusal.status_code).inc()
            await refusal(scope, receive, send)
            return
        self._figures.decisions.labels(200).inc()
        headers = [(name.encode(), value.encode()) for name, value in verdict.items()]
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, (b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def _serve(self, surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
        request_id, began, status = new_id(), time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        with structlog.contextvars.bound_contextvars(request=request_id):
            try:
                if not surface.is_open(scope):
                    scope[CALLER] = await self._access.caller(dict(scope["headers"]))
                await surface.app(scope, receive, sending)
            except Exception as error:  # noqa: BLE001 - the last catch
                # Starlette raises again what its handler has answered already; then there is nothing left to do.
                if status == 0:
                    await surface.answer(error)(scope, receive, sending)
        route = getattr(scope.get("route"), "path", "none")
        took = time.perf_counter() - began
        self._figures.requests.labels(scope["method"], route, status).observe(took)
