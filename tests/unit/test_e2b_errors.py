"""Errors as E2B's clients read them: the status that raises the fitting exception, and whether to try again."""

import json

import pytest

from space.e2b.errors import answer
from space.model.errors import (
    BootFailed,
    Conflict,
    InvalidArgument,
    InvalidPolicy,
    NoCapacity,
    NotFound,
    NotOffered,
    SandboxFailed,
    StorageFull,
    Unauthorized,
    Unavailable,
)


@pytest.mark.parametrize(
    ("error", "status", "again"),
    [
        (InvalidArgument("x"), 400, False),
        (InvalidPolicy("x"), 400, False),
        (InvalidArgument("x", code="idempotency_key_reused"), 422, False),
        (Unauthorized("x"), 401, False),
        (NotFound("x"), 404, False),
        (SandboxFailed("x"), 404, False),
        (Conflict("x"), 409, False),
        (Conflict("x", code="template_in_use"), 400, False),
        (Conflict("x", code="idempotency_in_flight", retry_after_s=1), 409, True),
        (NoCapacity("x"), 503, True),
        (Unavailable("x"), 503, True),
        (Unavailable("x", code="still_running"), 503, False),
        (BootFailed("x"), 500, False),
        (StorageFull("x"), 503, False),
        (NotOffered("x"), 501, False),
        (ValueError("a secret of ours"), 500, False),
    ],
)
def test_each_error_has_its_status_and_says_whether_to_try_again(error: Exception, status: int, again: bool) -> None:
    response = answer(error)
    body = json.loads(bytes(response.body))
    assert (response.status_code, body["code"]) == (status, status)
    assert body["message"]
    assert "secret of ours" not in body["message"]
    assert response.headers["should-retry"] == ("true" if again else "false")
    assert ("retry-after" in response.headers) == again
