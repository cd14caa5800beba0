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
    "GET /v1/health", "GET /v1/commands", "POST /v1/commands", "GET /v1/commands/c-1_Z", "DELETE /v1/commands/c1",
    "GET /v1/commands/c1/output?from=0&follow=false", "POST /v1/commands/c1/stdin?eof=true",
    "POST /v1/commands/c1/signal", "POST /v1/commands/c1/resize", "GET /v1/files?path=%2Ftmp%2F..%2Fa",
    "HEAD /v1/files?path=/a", "PUT /v1/files?path=/a?b", "DELETE /v1/files?path=/a", "GET /v1/files/stat?path=/",
    "GET /v1/files/list?path=/", "POST /v1/files/mkdir?path=/a", "POST /v1/files/move",
    "GET /health", "GET /metrics", "GET /envs", "GET /files?path=a&signature=v1_x", "HEAD /files", "POST /files",
    "OPTIONS /files", "POST /files/compose", "POST /process.Process/Start", "POST /process.Process/CloseStdin",
    "OPTIONS /process.Process/List", "POST /filesystem.Filesystem/WatchDir", "POST /filesystem.Filesystem/Stat",
)  # fmt: skip
OTHER = (
    "POST /init", "GET /activity", "POST /shutdown", "POST /freeze", "POST /thaw", "POST /warm", "POST /ready",
    "POST /fsfreeze", "POST /upgrade", "POST /health", "POST /v1/health", "PUT /v1/commands", "TRACE /v1/commands",
    "CONNECT /v1/commands", "get /v1/commands", "PATCH /v1/files", "POST /v1/files", "GET /v1/files/move",
    "GET /v1/files/", "GET /v1/commands/", "GET //v1/commands", "GET /v1/commands//c1", "GET /v1/x/../commands",
    "GET /v1/%63ommands", "GET /v1/commands/%2e%2e/init", "GET /v1/commands/a%2fb", "GET /v1/commands\n",
    "GET /v1/commands/c1\n", "GET /v1/commands;x", "GET /v1/commands/" + "a" * 65, "GET v1/commands", "GET *", "GET ",
    "GET http://x/v1/commands", "GET /v1/commands#x", "GET /commands", "POST /commands", "GET /files/stat",
    "PUT /files", "DELETE /files", "GET /files/compose", "POST /metrics", "GET /process.Process/List",
    "POST /process.Process/Exec", "POST /process.Process/", "POST /processXProcess/List", "POST /process.Process",
    "POST /filesystem.Filesystem/List", "POST /filesystem.Filesystem/Stat/", "POST /process.Process%2fList",
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
    verdict = decide(SLOTS, sandbox, "GET", "/v1/commands")
    assert isinstance(verdict, Deny)
    assert isinstance(verdict.error, Unavailable if re.fullmatch("[a-z0-9]{20}", sandbox) else NotFound)


@pytest.mark.parametrize("sandbox", [f"{HERE},{HERE}", f"{HERE} ", f"{HERE}\n", HERE.upper(), HERE[:-1], ""])
def test_near_an_id_is_none(sandbox: str) -> None:
    verdict = decide(SLOTS, sandbox, "GET", "/v1/commands")
    assert isinstance(verdict, Deny)
    assert isinstance(verdict.error, NotFound)


def test_a_sandbox_that_is_not_here_may_be_tried_again() -> None:
    verdict = decide(SLOTS, ELSEWHERE, "GET", "/v1/commands")
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
        assert path.startswith("/v1/commands/")
