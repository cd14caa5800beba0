"""The decision at the ingress proxy, by itself: what is let through, and that nothing else ever is."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.gateway.ingress import Allow, Deny, decide
from space.gateway.slots import SlotMap
from space.model.errors import NotFound, SpaceError, Unavailable
from space.model.ids import SandboxId
from space.wire.refusal import NOT_FOUND, PORT_CLOSED, Refusal

HERE, ELSEWHERE = SandboxId("a" * 20), SandboxId("b" * 20)
SLOTS = SlotMap()
SLOTS.replace({HERE: "100.64.0.3:49983"})

NATIVE = (
    "GET /v1/health", "GET /v1/commands", "POST /v1/commands", "GET /v1/commands/c-1_Z", "DELETE /v1/commands/c1",
    "GET /v1/commands/c1/output?from=0&follow=false", "POST /v1/commands/c1/stdin?eof=true",
    "POST /v1/commands/c1/signal", "POST /v1/commands/c1/resize", "GET /v1/files?path=%2Ftmp%2F..%2Fa",
    "HEAD /v1/files?path=/a", "PUT /v1/files?path=/a?b", "DELETE /v1/files?path=/a", "GET /v1/files/stat?path=/",
    "GET /v1/files/list?path=/", "POST /v1/files/mkdir?path=/a", "POST /v1/files/move",
)  # fmt: skip
ENVD = (
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


SURFACES = [("", line) for line in NATIVE] + [("49983", line) for line in ENVD]


def _judge(port: str, request_line: str, slots: SlotMap = SLOTS, sandbox: str = HERE) -> Allow | Deny:
    method, path = request_line.split(" ", 1)
    return decide(slots, sandbox, port, method, path)


def _refused(verdict: Allow | Deny) -> SpaceError | Refusal:
    assert isinstance(verdict, Deny)
    return verdict.error


@pytest.mark.parametrize(("port", "request_line"), SURFACES)
def test_the_public_surface_is_let_through(port: str, request_line: str) -> None:
    assert _judge(port, request_line) == Allow("100.64.0.3:49983", 49983 if port else None)


@pytest.mark.parametrize("request_line", [*OTHER, *ENVD])
def test_nothing_else_is(request_line: str) -> None:
    assert isinstance(_refused(_judge("", request_line)), NotFound)


@pytest.mark.parametrize("request_line", [*OTHER, *NATIVE])
def test_nothing_else_is_on_the_agents_port(request_line: str) -> None:
    error = _refused(_judge("49983", request_line))
    assert isinstance(error, Refusal)
    assert (error.status, error.sandbox) == (404, HERE)


@pytest.mark.parametrize("request_line", [*OTHER, *NATIVE, *ENVD, "GET /a%2Fb/../c?x=%00", "BREW /tea"])
@pytest.mark.parametrize("port", [1, 22, 8080, 49980, 49984, 49999, 65535])
def test_a_server_of_the_users_gets_whatever_comes(port: int, request_line: str) -> None:
    assert _judge(str(port), request_line) == Allow(f"100.64.0.3:{port}", port)


@pytest.mark.parametrize("request_line", [*OTHER, *NATIVE, *ENVD])
@pytest.mark.parametrize("port", [49981, 49982])
def test_the_agents_internal_ports_are_closed(port: int, request_line: str) -> None:
    error = _refused(_judge(str(port), request_line))
    assert isinstance(error, Refusal)
    assert (error.status, error.message, error.extra) == (502, PORT_CLOSED, {"port": port})


@given(st.text().filter(bool))
def test_only_a_plain_number_is_a_port(port: str) -> None:
    verdict = _judge(port, "GET /")
    if re.fullmatch("[1-9][0-9]{0,4}", port) and int(port) < 65536:
        assert isinstance(verdict, Allow) == (port not in ("49981", "49982", "49983"))
    else:
        assert isinstance(_refused(verdict), NotFound)


@pytest.mark.parametrize(
    "port", ["0", "08080", "+80", " 80", "80 ", "80.", "65536", "67816", "-1", "\uff18\uff10", "80,80", "٨٠"]
)
def test_near_a_port_is_none(port: str) -> None:
    assert isinstance(_refused(_judge(port, "GET /")), NotFound)


@given(st.text())
def test_only_an_exact_id_names_a_sandbox(sandbox: str) -> None:
    error = _refused(decide(SLOTS, sandbox, "", "GET", "/v1/commands"))
    assert isinstance(error, Unavailable if re.fullmatch("[a-z0-9]{20}", sandbox) else NotFound)


@pytest.mark.parametrize("sandbox", [f"{HERE},{HERE}", f"{HERE} ", f"{HERE}\n", HERE.upper(), HERE[:-1], ""])
@pytest.mark.parametrize("port", ["", "8080"])
def test_near_an_id_is_none(sandbox: str, port: str) -> None:
    assert isinstance(_refused(decide(SLOTS, sandbox, port, "GET", "/v1/commands")), NotFound)


def test_a_sandbox_that_is_not_here_may_be_tried_again() -> None:
    error = _refused(_judge("", "GET /v1/commands", sandbox=ELSEWHERE))
    assert isinstance(error, Unavailable)
    assert error.retry_after_s == 1


def test_a_sandbox_is_not_found_only_by_who_knows_them_all() -> None:
    slots = SlotMap()
    error = _refused(_judge("8080", "GET /", slots))
    assert isinstance(error, Refusal)
    assert (error.status, error.retry_after_s) == (503, 1)
    slots.replace({})
    error = _refused(_judge("8080", "GET /", slots))
    assert isinstance(error, Refusal)
    assert (error.status, error.message) == (502, NOT_FOUND)


@given(st.sampled_from(SURFACES), st.data())
def test_what_is_let_through_is_plain(call: tuple[str, str], data: st.DataObject) -> None:
    """Something put into a public path anywhere: it is refused, or it is a letter of a command's id."""
    port, request_line = call
    method, path = request_line.split(" ", 1)
    path, _, _ = path.partition("?")
    at = data.draw(st.integers(0, len(path)))
    put_in = data.draw(
        st.sampled_from(["%", "%2f", "..", "/", "//", "/..", ";", "\\", "\0", "\n", " ", "#", "é", "x", "-"])
    )
    if isinstance(decide(SLOTS, HERE, port, method, path[:at] + put_in + path[at:]), Allow):
        assert put_in in {"x", "-"}
        assert path.startswith("/v1/commands/")
