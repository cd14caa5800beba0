"""RFC 9457 problem+json: how every error of ours travels over HTTP, outside and inside."""

from collections.abc import Mapping

import httpx2
import pydantic

from space.model.errors import SpaceError, Unauthorized, Unavailable, from_problem

MEDIA_TYPE = "application/problem+json"


class Problem(pydantic.BaseModel):
    """The body of an error answer. `code` is stable; `detail` says what to do; `sandbox` is one that stays, failed."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    sandbox: str | None = None


def to_problem(error: SpaceError) -> Problem:
    """Return the body for an error; its cause stays behind."""
    return Problem(title=error.title, status=error.status, code=error.slug, detail=str(error), sandbox=error.sandbox)


def headers_of(error: SpaceError) -> dict[str, str]:
    """Return the headers that go with an error: `Retry-After` in seconds where it is known, how to log in at a 401."""
    found = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
    return found | ({"www-authenticate": "Bearer"} if error.status == Unauthorized.status else {})


def raise_for_problem(response: httpx2.Response) -> None:
    """Raise the error that an answer carries; nothing happens for a 2xx. Another's body must have been read."""
    if not response.is_success:  # of a stream that goes on there is no content to show
        raise_problem(response.request.url.path, response.status_code, response.content, response.headers)


def raise_problem(asked: str, status: int, content: bytes, headers: Mapping[str, str]) -> None:
    """Raise the error that a whole answer carries; nothing happens for a 2xx. `asked` is the path of the request."""
    if status // 100 == 2:
        return
    try:
        problem = Problem.model_validate_json(content)
    except pydantic.ValidationError:
        raise Unavailable(f"{asked} answered {status}; see the logs.") from None
    retry = headers.get("retry-after", "")
    error = from_problem(problem.code, problem.detail, int(retry) if retry.isdigit() else None)
    error.sandbox = problem.sandbox
    raise error
