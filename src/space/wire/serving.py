"""Serve an HTTP application of ours on a unix socket, with the one handler that turns errors into problem+json."""

import contextlib
import os
import re
import socket
from collections.abc import Generator
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp

from space.model.errors import InvalidArgument, SpaceError
from space.telemetry import logger
from space.wire.problem import MEDIA_TYPE, Problem, headers_of, to_problem

log = logger()
_SUBJECT = re.compile(r"^(?:Input|Value|String|List|Dictionary|Data) should ")
_BACKLOG = 2048
_KEEP_ALIVE_S = 2 * 3600
"""Longer than any of our callers keeps an idle connection (Envoy: 1 h): a server that closes first may do so while the
next request is on its way, and that one would fail."""
_ROUTING = {
    404: ("not_found", "There is nothing at this path; /openapi.json lists what there is."),
    405: ("method_not_allowed", "This path has no such method; the header Allow lists those it has."),
}


def bind_unix(path: Path, *, mode: int) -> socket.socket:
    """Return a listening unix socket with exactly this mode; a stale file of a killed predecessor is replaced.

    The folder decides the group (it is setgid) and keeps everybody else out. Binding under a umask leaves no moment in
    which the socket is open to more than `mode`.
    """
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o777 & ~mode)
    try:
        made.bind(str(path))
    finally:
        os.umask(previous)
    made.listen(_BACKLOG)
    return made


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process's main decides when to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def server(app: ASGIApp, *, grace_s: float) -> uvicorn.Server:
    """Return a server for `app`; run `serve(sockets=[...])` in a task and set `should_exit` to end it.

    Requests under way at the end get `grace_s` seconds. Plain asyncio: uvloop makes starting a process ten times
    slower.
    """
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(grace_s),
    )
    return _Server(config)


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    """Return a problem as an HTTP answer."""
    return Response(problem.model_dump_json(exclude_none=True), problem.status, headers, MEDIA_TYPE)


def answer(error: Exception) -> Response:
    """Return the answer to any error, and log what its receiver may not see. The only place that makes problems."""
    if isinstance(error, HTTPException):
        code, detail = _ROUTING.get(error.status_code, ("bad_request", f"{error.detail}."))
        problem = Problem(title=error.detail, status=error.status_code, code=code, detail=detail)
        return problem_response(problem, dict(error.headers or {}))
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        field = ".".join(part for part in first["loc"][1:] if isinstance(part, str))  # numbers count repetitions
        error = InvalidArgument(f"{field}: {in_words(first['msg'])}.")
    elif not isinstance(error, SpaceError):
        log.error("request_crashed", exc_info=error)
        error = SpaceError("Internal error; see the log of this process.")
    elif error.__cause__ is not None:
        log.warning("request_failed", code=error.slug, detail=str(error), cause=repr(error.__cause__))
    return problem_response(to_problem(error), headers_of(error))


def in_words(message: str) -> str:
    """Return pydantic's message about a value, without its words for where the value came from."""
    return _SUBJECT.sub("must ", message)


def _allowed(app: FastAPI, request: Request) -> str:
    """Return the methods that the routes of this path have together."""
    here = [route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in here for method in getattr(route, "methods", None) or ()}))


def answer_with_problems(app: FastAPI) -> None:
    """Give an application of ours its error handler."""

    async def handler(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            error.headers = {"allow": _allowed(app, request)}  # Starlette tells only the first route's methods
        return answer(error)

    for kind in (SpaceError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handler)
