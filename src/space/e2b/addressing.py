"""Which sandbox, and which port of it, a request means that comes to SPACE's public address. Pure.

E2B's clients say it in one of two ways: by the name that they call (`<port>-<id>.<domain>`), or by two headers at a
name that all sandboxes share (`E2b-Sandbox-Id`, `E2b-Sandbox-Port`). The name wins where both are there and differ, as
with E2B: a page in a browser is bound to its origin, and no header that it sets may turn that into another sandbox's.
"""

import dataclasses
import re
from collections.abc import Mapping

from space.wire.gateway import AGENT_PORT
from space.wire.refusal import Refusal

SANDBOX_HEADER = b"e2b-sandbox-id"
PORT_HEADER = b"e2b-sandbox-port"

_LABEL = re.compile(rb"([0-9]+)-([a-z0-9]+)(?:-[a-z0-9]+)?")
"""The first label of a name; an old client's `<id>-<client>` is shortened."""

_PORT = re.compile(rb"[1-9][0-9]{0,4}")
_ID_CHARS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What is meant. `sandbox` is as the client wrote it, shortened; it need not be an id that anything can have.

    `own_name`: it was meant by its own name, so that the answer is of its own origin in a browser.
    """

    sandbox: str
    port: int
    own_name: bool


def target(headers: Mapping[bytes, bytes], domain: str | None) -> Target | None:
    """Return what a request with these headers (names in lower case) means; None where it is for SPACE's own API.

    `domain`: below which names stand for sandboxes (with its port, if it is not the scheme's own); None takes any name
    whose first label has a port and an id. Raises Refusal for a port that is none.
    """
    named = _named(headers.get(b"host", b"").lower(), None if domain is None else domain.lower().encode())
    if named is not None:
        return named
    sandbox = headers.get(SANDBOX_HEADER, b"").strip()
    if not sandbox:
        return None
    port = headers.get(PORT_HEADER, b"").strip()
    ident = _shown(sandbox.partition(b"-")[0])
    return Target(ident, _port(port, ident) if port else AGENT_PORT, own_name=False)


def _named(host: bytes, domain: bytes | None) -> Target | None:
    label, _, rest = without_port(host).partition(b".")
    match = _LABEL.fullmatch(label)
    if match is None or not rest:
        return None
    if domain is None:
        if len(match[2]) != _ID_CHARS:
            return None
    elif rest.removesuffix(b".") != without_port(domain):
        return None
    ident = _shown(match[2])
    return Target(ident, _port(match[1], ident), own_name=True)


def without_port(host: bytes) -> bytes:
    """Return a host without `:port`."""
    name, colon, port = host.rpartition(b":")
    return name if colon and port.isdigit() else host


def _port(text: bytes, sandbox: str) -> int:
    """Read a port once, in its one spelling."""
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise Refusal(400, sandbox, "Invalid sandbox port")
    return int(text)


def _shown(sandbox: bytes) -> str:
    """Return what a client wrote for an id, as far as it is shown again."""
    return sandbox[:64].decode("latin-1")
