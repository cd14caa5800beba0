"""What may reach a guest from outside: one pure decision for each request at the ingress proxy.

A request is let through when it names a sandbox whose slot is known here, and a port of its guest. On the agent's port
it must ask for a call of the agent's public surface: the path must match exactly as it is on the wire, undecoded, so a
form that a lenient server would decode or collapse into another path (`%2e`, `//`, `/x/../y`) matches nothing. On the
agent's internal ports nothing answers. Every other port is a server of the user's: it judges its paths itself. The
caller has proved who it is at the edge; this process only finds the slot.

Requests of SPACE's own surface name no port; they get SPACE's errors, the others E2B's (wire/refusal.py).
"""

import dataclasses
import re

from space.gateway.slots import SlotMap
from space.model.errors import NotFound, SpaceError, Unavailable
from space.model.ids import SandboxId, is_id
from space.wire import refusal
from space.wire.gateway import AGENT_PORT, WORKERS_PORTS
from space.wire.refusal import Refusal

_NATIVE = (
    ("GET", "/v1/health"),  # the worker's probe of the data path; the edge routes no client's request to it
    ("GET|POST", "/v1/commands"),
    ("GET|DELETE", "/v1/commands/{id}"),
    ("GET", "/v1/commands/{id}/output"),
    ("POST", "/v1/commands/{id}/(?:stdin|signal|resize)"),
    ("GET|HEAD|PUT|DELETE", "/v1/files"),
    ("GET", "/v1/files/(?:stat|list)"),
    ("POST", "/v1/files/(?:mkdir|move)"),
)
_ENVD = (
    # OPTIONS is what a browser asks before
    ("GET|OPTIONS", "/(?:health|metrics|envs)"),
    ("GET|HEAD|POST|OPTIONS", "/files"),
    ("POST|OPTIONS", "/files/compose"),
    (
        "POST|OPTIONS",
        "/process[.]Process/(?:List|Connect|Start|Update|StreamInput|SendInput|SendSignal|CloseStdin)",
    ),
    (
        "POST|OPTIONS",
        "/filesystem[.]Filesystem/(?:Stat|MakeDir|Move|ListDir|Remove|WatchDir"
        "|CreateWatcher|GetWatcherEvents|RemoveWatcher)",
    ),
)
_PORT = re.compile("[1-9][0-9]{0,4}")


def _pattern(surface: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    return re.compile(
        "|".join(f"(?:{methods}) {path}".replace("{id}", "[A-Za-z0-9_-]{1,64}") for methods, path in surface)
    )


_NATIVE_CALL, _ENVD_CALL = _pattern(_NATIVE), _pattern(_ENVD)


@dataclasses.dataclass(frozen=True, slots=True)
class Allow:
    """Let it through to this `address:port`; `port` is the one that was named, None where none was."""

    dial: str
    port: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Deny:
    """Answer with this."""

    error: SpaceError | Refusal


def decide(slots: SlotMap, sandbox: str, port: str, method: str, path: str) -> Allow | Deny:
    """Judge one request.

    `sandbox` and `port` are the values of `x-space-sandbox` and `x-space-port` ("" when absent; two of them arrive
    joined by a comma and are neither), `path` is as it came, with its query.
    """
    if not is_id(sandbox):
        return Deny(NotFound("The request names no sandbox."))
    call = f"{method} {path.partition('?')[0]}"
    if port:
        return _visit(slots, SandboxId(sandbox), port, call)
    if not _NATIVE_CALL.fullmatch(call):
        return Deny(NotFound("There is no such call of a sandbox; the path must be written in its plain form."))
    dial = slots.dial_address(SandboxId(sandbox))
    if dial is None:
        # not 404: the sandbox passed the API, so it exists; it is just starting, ending, or being told to us again
        return Deny(Unavailable(f"Sandbox {sandbox} cannot be reached right now. Get its state, and try again."))
    return Allow(dial)


def _visit(slots: SlotMap, sandbox: SandboxId, port: str, call: str) -> Allow | Deny:
    number = int(port) if _PORT.fullmatch(port) else 0
    if not 1 <= number <= 65535:
        return Deny(NotFound("The request names no port."))
    if not slots.told:
        return Deny(Refusal(503, sandbox, "The sandbox's host is restarting. Try again in a moment.", retry_after_s=1))
    dial = slots.dial_address(sandbox, number)
    if dial is None:
        # its row said a moment ago that it runs: it has just ended, or been put to sleep
        return Deny(refusal.not_found(sandbox))
    if number in WORKERS_PORTS:
        return Deny(refusal.port_closed(sandbox, number))
    if number == AGENT_PORT and not _ENVD_CALL.fullmatch(call):
        return Deny(Refusal(404, sandbox, "There is nothing at this path."))
    return Allow(dial, number)
