"""The decision at the ingress proxy, by itself: what is let through, and that nothing else ever is."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.gateway.ingress import Allow, Deny, decide
from space.gateway.slots import SlotMap
from space.model.errors import NotFound, Unavailable
from space.model.ids import SandboxId

HERE, ELSEWHERE = SandboxId("a" * 20), SandboxId("b" * 20)
SLOTS = SlotMap()
SLOTS.put(HERE, "100.64.0.3:49983")

PUBLIC = (
    "GET /health", "GET /commands", "POST /commands", "GET /commands/c-1_Z", "DELETE /commands/c1",
    "GET /commands/c1/output?from=0&follow=false", "POST /commands/c1/stdin?eof=true", "POST /commands/c1/signal",
    "POST /commands/c1/resize", "GET /files?path=%2Ftmp%2F..%2Fa", "HEAD /files?path=/a", "PUT /files?path=/a?b",
    "DELETE /files?path=/a", "GET /files/stat?path=/", "GET /files/list?path=/", "POST /files/mkdir?path=/a",
    "POST /files/move",
)  # fmt: skip
OTHER = (
    "POST /init", "GET /activity", "POST /shutdown", "POST /health", "PUT /commands", "TRACE /commands",
    "CONNECT /commands", "get /commands", "PATCH /files", "POST /files", "GET /files/move", "GET /files/",
    "GET /commands/", "GET //commands", "GET /commands//c1", "GET /x/../commands", "GET /%63ommands",
    "GET /commands/%2e%2e/init", "GET /commands/a%2fb", "GET /commands\n", "GET /commands/c1\n", "GET /commands;x",
    "GET /commands/" + "a" * 65, "GET commands", "GET *", "GET ", "GET http://x/commands", "GET /commands#x",
)  # fmt: skip


@pytest.mark.parametrize("request_line", PUBLIC)
def test_the_public_surface_is_let_through(request_line: str) -> None:
    method, path = request_line.split(" ", 1)
    assert decide(SLOTS, HERE, method, path) == Allow("100.64.0.3:49983")


@pytest.mark.parametrize("request_line", OTHER)
def test_nothing_else_is(request_line: str) -> None:
    method, path = request_line.split(" ", 1)
    verdict = decide(SLOTS, HERE, method, path)
    assert isinstance(verdict, Deny)
    assert isinstance(verdict.error, NotFound)


@given(st.text())
def test_only_an_exact_id_names_a_sandbox(sandbox: str) -> None:
    verdict = decide(SLOTS, sandbox, "GET", "/commands")
    assert isinstance(verdict, Deny)
    assert isinstance(verdict.error, Unavailable if re.fullmatch("[a-z0-9]{20}", sandbox) else NotFound)


@pytest.mark.parametrize("sandbox", [f"{HERE},{HERE}", f"{HERE} ", f"{HERE}\n", HERE.upper(), HERE[:-1], ""])
def test_near_an_id_is_none(sandbox: str) -> None:
    verdict = decide(SLOTS, sandbox, "GET", "/commands")
    assert isinstance(verdict, Deny)
    assert isinstance(verdict.error, NotFound)


def test_a_sandbox_that_is_not_here_may_be_tried_again() -> None:
    verdict = decide(SLOTS, ELSEWHERE, "GET", "/commands")
    assert isinstance(verdict, Deny)
    assert isinstance(verdict.error, Unavailable)
    assert verdict.error.retry_after_s == 1


@given(st.sampled_from(PUBLIC), st.data())
def test_what_is_let_through_is_plain(request_line: str, data: st.DataObject) -> None:
    """Something put into a public path anywhere: it is refused, or it is a letter of a command's id."""
    method, path = request_line.split(" ", 1)
    path, _, _ = path.partition("?")
    at = data.draw(st.integers(0, len(path)))
    put_in = data.draw(
        st.sampled_from(["%", "%2f", "..", "/", "//", "/..", ";", "\\", "\0", "\n", " ", "#", "é", "x", "-"])
    )
    if isinstance(decide(SLOTS, HERE, method, path[:at] + put_in + path[at:]), Allow):
        assert put_in in {"x", "-"}
        assert path.startswith("/commands/")
