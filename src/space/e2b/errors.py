"""Errors as E2B's clients read them: `{"code": <HTTP status>, "message": ...}` and whether to try again.

The clients raise by status, so each error of ours gets the status that raises the fitting exception; our own slug is
in `error_code`. They obey `Should-Retry` and `Retry-After`. Without the former they would repeat any 429, 502, 503 and
504, creates included, and so make sandboxes twice.
"""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import Request

from space.model.errors import BootFailed, BuildFailed, InvalidArgument, SandboxFailed, SpaceError, StorageFull
from space.telemetry import logger
from space.wire.serving import in_words

_STATUS: dict[type[SpaceError], int] = {
    InvalidArgument: 400,
    SandboxFailed: 404,  # one whose VM has died is there no more, to E2B's clients
    StorageFull: 503,
    BootFailed: 500,
    BuildFailed: 500,
}
_STATUS_OF_SLUG = {"idempotency_key_reused": 422, "template_in_use": 400}


_NEVER_AGAIN = frozenset({"still_running"})
"""Errors of calls that go on: a client that repeats a create by itself would have two sandboxes."""


def answer(error: Exception) -> Response:
    """Return the answer to any error, and log what its receiver may not see."""
    if isinstance(error, HTTPException):
        text = "There is nothing at this path." if error.status_code == 404 else f"{error.detail}."
        return _answer(error.status_code, text, headers=dict(error.headers or {}))
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        field = ".".join(part for part in first["loc"][1:] if isinstance(part, str))
        return _answer(400, f"{field}: {in_words(first['msg'])}.")
    if not isinstance(error, SpaceError):
        logger().error("request_crashed", exc_info=error)
        error = SpaceError("Internal error; see the log of this process.")
    elif error.__cause__ is not None:
        logger().warning("request_failed", code=error.slug, detail=str(error), cause=repr(error.__cause__))
    wait_s = None if error.slug in _NEVER_AGAIN else error.retry_after_s
    again = {} if wait_s is None else {"retry-after": str(wait_s)}
    return _answer(status_of(error), str(error), error.slug, again)


def status_of(error: SpaceError) -> int:
    """Return the status with which E2B's clients raise what fits."""
    of_class = next((_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS), error.status)
    return _STATUS_OF_SLUG.get(error.slug, of_class)


def body_of(error: SpaceError) -> dict[str, object]:
    """Return an error as part of another answer: one fork of several that failed."""
    return {"code": status_of(error), "message": str(error), "error_code": error.slug}


def _answer(status: int, message: str, slug: str | None = None, headers: dict[str, str] | None = None) -> Response:
    content: dict[str, object] = {"code": status, "message": message}
    if slug is not None:
        content["error_code"] = slug
    again = "true" if headers and "retry-after" in headers else "false"
    return JSONResponse(content, status, (headers or {}) | {"should-retry": again})


def answer_with_e2b_errors(app: FastAPI) -> None:
    """Give the surface its error handler."""

    async def handler(_: Request, error: Exception) -> Response:
        return answer(error)

    for kind in (SpaceError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handler)
