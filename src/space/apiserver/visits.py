"""Requests for a port of a sandbox, as E2B's clients and browsers make them: may they pass, and as what.

- The agent's port (49983) needs no key: the agent judges the sandbox's token, or the signature, that is in the request.
- The agent's internal ports are closed.
- Any other port is a server of the user's. Where the sandbox does not open its ports to everybody, the traffic token is
  needed, or a key of the sandbox's project.

A sandbox that sleeps and may be woken is awake then, at the agent's port only for who shows its token: nobody else gets
anything out of it. Every refusal is in the words that E2B's clients know (wire/refusal.py).
"""

import hmac
import re
import time

from space.apiserver.question import Question
from space.control.access import Access
from space.control.attempts import Attempts
from space.control.lifecycle import wakes
from space.control.traffic import is_traffic_token
from space.e2b import addressing, signatures
from space.e2b.addressing import Target
from space.e2b.network import https_ports
from space.e2b.signatures import Signed
from space.model.errors import Conflict, NotFound, SandboxFailed, SpaceError, Unauthorized
from space.model.ids import SandboxId, is_api_key, is_id
from space.model.lifecycle import State
from space.model.sandbox import Desired, Sandbox
from space.wire import edge, refusal
from space.wire.gateway import AGENT_PORT, WORKERS_PORTS
from space.wire.refusal import Refusal

TRAFFIC_TOKEN = "e2b-traffic-access-token"  # noqa: S105 - a header's name
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")
_WRONG_SIGNATURES, _BACK_PER_S = 30, 1.0


class Visits:
    """Judges them; `domain` as in addressing.target."""

    def __init__(self, access: Access, domain: str | None) -> None:
        self._access, self._domain = access, domain
        self._wrong = Attempts(_WRONG_SIGNATURES, _BACK_PER_S)

    async def judge(self, asked: Question) -> dict[str, str] | None:
        """Return the verdict's headers; None where the request is for no sandbox's port. Raises Refusal."""
        target = addressing.target(asked.headers, self._domain)
        if target is not None:
            return await self._visit(target, asked)
        signed = signatures.signed(asked.operation, asked.path, asked.query)
        return None if signed is None else await self._open(signed, asked)

    async def _visit(self, target: Target, asked: Question) -> dict[str, str]:
        if target.port in WORKERS_PORTS:
            raise refusal.port_closed(target.sandbox, target.port)
        row = await self._access.current(SandboxId(target.sandbox)) if is_id(target.sandbox) else None
        if row is None:
            raise refusal.not_found(target.sandbox)
        by_key = target.port != AGENT_PORT and await self._let_in(row, asked)
        if target.port != AGENT_PORT or _shows_token(row, asked):
            row = await self._awake(row)
        strict = by_key or (target.port == AGENT_PORT and not target.own_name)
        origin = edge.STRICT if strict else edge.OWN if target.own_name else edge.SHARED
        return self._verdict(row, target, asked, origin)

    async def _open(self, signed: Signed, asked: Question) -> dict[str, str]:
        """Judge a signed URL that names no sandbox."""
        if not self._wrong.allowed(asked.client):
            raise Refusal(429, "", "Too many requests with a wrong signature.", retry_after_s=1)
        ident = await self._access.signer(lambda tokens: signatures.find(signed, tokens))
        row = None if ident is None else await self._access.current(ident)
        if row is None or row.spec.desired is Desired.DELETED:  # the list of tokens may be a moment old
            self._wrong.wrong(asked.client)
            raise Refusal(401, "", "invalid signature")
        if not signed.expired(time.time()):
            row = await self._awake(row)
        return self._verdict(row, Target(row.id, AGENT_PORT, own_name=False), asked, edge.STRICT)

    async def _let_in(self, row: Sandbox, asked: Question) -> bool:
        """Tell whether a key opened a port, rather than that it is open or the traffic token; raises Refusal."""
        if row.spec.public_ports:
            return False
        token = asked.text(TRAFFIC_TOKEN)
        if token and is_traffic_token(token, row.spec.agent_token):
            return False
        if await self._shows_key(row, asked):
            return True
        raise (refusal.token_invalid if token else refusal.token_missing)(row.id, TRAFFIC_TOKEN)

    async def _shows_key(self, row: Sandbox, asked: Question) -> bool:
        given = asked.text("x-api-key") or asked.text("authorization").partition(" ")[2].strip()
        if not is_api_key(given):  # one of the user's server
            return False
        try:
            caller = await self._access.caller({b"x-api-key": given.encode()})
        except Unauthorized:
            return False
        return caller.project == row.project

    async def _awake(self, row: Sandbox) -> Sandbox:
        if not wakes(row):
            return row
        try:
            return await self._access.awake(row)
        except (NotFound, SandboxFailed):
            raise refusal.not_found(row.id) from None
        except Conflict:
            raise refusal.transitioning(row.id) from None
        except SpaceError as error:
            raise Refusal(error.status, row.id, str(error), retry_after_s=error.retry_after_s) from error

    def _verdict(self, row: Sandbox, target: Target, asked: Question, origin: str) -> dict[str, str]:
        why = _why_not(row)
        if why is not None:
            raise why
        self._access.used(row.id)
        verdict = {edge.TO: edge.NODE, edge.SANDBOX: row.id, edge.PORT: str(target.port), edge.ORIGIN: origin}
        host = self._host(row, target)
        if host is not None:
            verdict[edge.HOST] = host
        if target.port in https_ports(row.spec.e2b):
            verdict[edge.TLS] = "1"
        remove = [] if target.own_name else ["cookie"]  # those of other sandboxes, where all have one name
        if target.port != AGENT_PORT:
            remove += asked.secrets()
        elif "x-api-key" in asked.secrets():
            remove.append("x-api-key")
        if remove:
            verdict[edge.REMOVE] = ",".join(remove)
        return verdict

    def _host(self, row: Sandbox, target: Target) -> str | None:
        """Return the Host for the guest: what its owner wants, or in place of our own address the sandbox's."""
        masked = (row.spec.mask_host or "").replace("${PORT}", str(target.port))
        if target.port != AGENT_PORT and _HOST.fullmatch(masked):
            return masked
        if target.own_name:
            return None
        if self._domain is None:
            return f"localhost:{target.port}"
        return f"{target.port}-{row.id}.{self._domain}"


def _shows_token(row: Sandbox, asked: Question) -> bool:
    """Tell whether a request for the agent shows the sandbox's token, or a signature with it that is still good."""
    token = row.spec.agent_token
    if token and hmac.compare_digest(asked.text(edge.ACCESS_TOKEN).encode(), token.encode()):
        return True
    signed = signatures.signed(asked.operation, asked.path, asked.query)
    return signed is not None and signed.of(token) and not signed.expired(time.time())


def _why_not(row: Sandbox) -> Refusal | None:
    """Return why requests may not go to a sandbox now; None where they may.

    For E2B's clients one that is asleep, or falls asleep, is not there: so they tell whether it runs. (One that a
    request wakes has been waited for before.)
    """
    if row.spec.desired is Desired.DELETED:
        return refusal.not_found(row.id)
    match row.state:
        case State.RUNNING:
            return None
        case State.CREATING | State.RESTORING:
            return refusal.transitioning(row.id)
        case State.SUSPENDING if row.spec.desired is Desired.RUNNING:  # and runs again after that
            return refusal.transitioning(row.id)
        case State.PAUSED if row.spec.desired is Desired.RUNNING:  # its worker halted it, and it goes on by itself
            return refusal.transitioning(row.id)
        case _:
            return refusal.not_found(row.id)
