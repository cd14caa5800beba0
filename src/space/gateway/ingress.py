"""What may reach a guest from outside: one pure decision for each request at the ingress proxy.

A request is let through when it names a sandbox whose slot is known here and asks for a call of the agent's public
surface. The path must match exactly as it is on the wire, undecoded: a form that a lenient server would decode or
collapse into another path (`%2e`, `//`, `/x/../y`) matches nothing. The caller has proved who it is at the edge; this
process only finds the slot.
"""

import dataclasses
import re

from space.gateway.slots import SlotMap
from space.model.errors import NotFound, SpaceError, Unavailable
from space.model.ids import SandboxId, is_id

_SURFACE = (
    ("GET", "/v1/health"),  # the worker's probe of the data path; the edge routes no client's request to it
    ("GET|POST", "/v1/commands"),
    ("GET|DELETE", "/v1/commands/{id}"),
    ("GET", "/v1/commands/{id}/output"),
    ("POST", "/v1/commands/{id}/(?:stdin|signal|resize)"),
    ("GET|HEAD|PUT|DELETE", "/v1/files"),
    ("GET", "/v1/files/(?:stat|list)"),
    ("POST", "/v1/files/(?:mkdir|move)"),
    # E2B's protocol; OPTIONS is what a browser asks before
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
_ALLOWED = re.compile(
    "|".join(f"(?:{methods}) {path}".replace("{id}", "[A-Za-z0-9_-]{1,64}") for methods, path in _SURFACE)
)


@dataclasses.dataclass(frozen=True, slots=True)
class Allow:
    """Let it through to this `address:port`."""

    dial: str


@dataclasses.dataclass(frozen=True, slots=True)
class Deny:
    """Answer with this error."""

    error: SpaceError


def decide(slots: SlotMap, sandbox: str, method: str, path: str) -> Allow | Deny:
    """Judge one request.

    `sandbox` is the value of `x-space-sandbox` ("" when absent; two of them arrive joined by a comma and are no id),
    `path` is as it came, with its query.
    """
    if not is_id(sandbox):
        return Deny(NotFound("The request names no sandbox."))
    if not _ALLOWED.fullmatch(f"{method} {path.partition('?')[0]}"):
        return Deny(NotFound("There is no such call of a sandbox; the path must be written in its plain form."))
    dial = slots.dial_address(SandboxId(sandbox))
    if dial is None:
        # not 404: the sandbox passed the API, so it exists; it is just starting, ending, or being told to us again
        return Deny(Unavailable(f"Sandbox {sandbox} cannot be reached right now. Get its state, and try again."))
    return Allow(dial)
