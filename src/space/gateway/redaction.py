"""Which secrets must not come back in which answers, and the redactor's way to learn them.

Every answer of a host to which a rule binds a credential is searched, also where another rule without one let the
request through: a server may show at one path what it was sent at another. Searched for are all secrets of the sandbox,
the ones that were just replaced, and the token of this request. The proxy is told an identifier only.
"""

import asyncio
import hashlib
import hmac
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from fastapi import FastAPI

from space.gateway.guests import Guest
from space.model.errors import NotFound
from space.model.policy import Rule
from space.wire.redactor import Needles
from space.wire.serving import answer_with_problems, bind_unix, server

_KEPT = 4096
_IDENT = re.compile(r"[0-9a-f]{32}")
_GRACE_S = 1.0


class Redactions:
    """Sets of secrets by their identifiers."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[str, list[str]] = OrderedDict()

    def ident(self, guest: Guest, host: str, tokens: Iterable[str]) -> str | None:
        """Return the identifier of what an answer of `host` must not show; None where nothing is bound to the host."""
        if not any(_binds(rule) and rule.host is not None and rule.host.matches(host) for rule in guest.policy.rules):
            return None
        values = sorted({*guest.secrets.values(), *guest.former_secrets, *tokens})
        # keyed, so that an identifier in a log is no check value of a secret
        ident = hmac.new(self._key, json.dumps(values).encode(), hashlib.sha256).hexdigest()[:32]
        self._known[ident] = values
        self._known.move_to_end(ident)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return ident

    def secrets(self, ident: str) -> list[str]:
        """Return the secrets of an identifier; raises NotFound."""
        if not _IDENT.fullmatch(ident) or ident not in self._known:
            raise NotFound("Nothing is known under this identifier.")
        return self._known[ident]


def _binds(rule: Rule) -> bool:
    return any(binding.secrets for binding in rule.bindings)


def application(redactions: Redactions) -> FastAPI:
    """Return the redactor's API."""
    app = FastAPI(openapi_url=None)
    answer_with_problems(app)

    @app.get("/v1/needles/{ident}")
    async def get_needles(ident: str) -> Needles:
        return Needles(secrets=redactions.secrets(ident))

    return app


async def serve(path: Path, redactions: Redactions, stop: asyncio.Event) -> None:
    """Serve the redactor on a unix socket of the pair until `stop` is set."""
    serving = server(application(redactions), grace_s=_GRACE_S)

    async def end() -> None:
        await stop.wait()
        serving.should_exit = True

    with bind_unix(path, mode=0o660) as listener:
        async with asyncio.TaskGroup() as group:
            group.create_task(serving.serve(sockets=[listener]))
            group.create_task(end())
