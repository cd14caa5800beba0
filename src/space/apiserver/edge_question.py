"""The edge's question, once per request: may it pass, and where to? (wire/edge.py has its form.)

There are two ways to a sandbox. Its commands and files in SPACE's own API (`/v1/sandboxes/<id>/commands...`) need a key
of its project; the agent's token is added here. Requests for one of its ports are E2B's way (visits.py). Whatever is
neither goes to the api without a decision here. This must be quick, so it is plain ASGI and works from memory; only a
request for a sandbox that sleeps waits here until it is awake.
"""

import re

from starlette.responses import Response

from space.apiserver.question import Question
from space.apiserver.visits import Visits
from space.control.access import Access
from space.control.lifecycle import why_unreachable
from space.model.errors import BadRequest, NotFound
from space.model.ids import SandboxId
from space.wire import edge
from space.wire.refusal import Refusal, navigates
from space.wire.serving import answer

_AGENT = re.compile(rb"/v1/sandboxes/([^/]*)/(?:commands|files)(/.*)?")
_ID = re.compile(rb"[a-z0-9]{20}")
_ODD = re.compile(rb"%|\\|//|/\.")
"""What no route of the agent has in its path; it would only serve to reach another route after the edge's rewriting."""


class EdgeQuestion:
    """Answers it. `domain` as in e2b/addressing.py."""

    def __init__(self, access: Access, domain: str | None) -> None:
        self._access, self._visits = access, Visits(access, domain)

    async def decide(self, asked: Question) -> dict[str, str]:
        """Return the headers of the answer that lets a request pass; raises the error that the client gets otherwise,
        a SpaceError or a Refusal.
        """
        visit = await self._visits.judge(asked)
        return await self._native(asked) if visit is None else visit

    async def _native(self, asked: Question) -> dict[str, str]:
        if asked.path.startswith(b"/internal"):
            raise NotFound("There is nothing here.")
        match = _AGENT.fullmatch(asked.path)
        if match is None:
            return {edge.TO: edge.API}
        caller = await self._access.caller(asked.headers)
        if _ODD.search(asked.path):
            raise BadRequest("The path of a sandbox's route has no escapes, '//' or '..'; file names go into ?path=.")
        ident = match[1].decode("ascii", "replace")
        if not _ID.fullmatch(match[1]):
            raise NotFound(f"There is no sandbox {ident[:40]!r}: an id is 20 characters of a-z and 0-9.")
        sandbox = await self._access.reachable(SandboxId(ident), caller.project)
        refused = why_unreachable(sandbox, caller.project, ident)
        if refused is not None:
            raise refused
        assert sandbox is not None
        return {edge.TO: edge.NODE, edge.SANDBOX: ident, edge.ACCESS_TOKEN: sandbox.spec.agent_token}


def refusing(error: Exception, asked: Question) -> Response:
    """Return the answer that the client gets through the edge."""
    if isinstance(error, Refusal):
        navigating = navigates(asked.text("accept"))
        found = Response(error.body(navigating=navigating), error.status, error.headers(navigating=navigating))
    else:
        found = answer(error)
    found.status_code = edge.IN_PLACE_OF.get(found.status_code, found.status_code)
    return found
