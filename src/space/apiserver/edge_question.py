"""The edge's question, once per request: may it pass, and where to?

Envoy sends the client's method, its path after our prefix, and the headers that may hold a key. The answer for a
sandbox's commands and files is the node, the sandbox and the agent's token in headers; every other path is the api's
own and goes there without a decision here. It must be quick, so it is plain ASGI and works from memory; only a request
for a sandbox that sleeps waits here until it is awake.
"""

import re
from collections.abc import Mapping

from space.control.access import Access
from space.control.lifecycle import why_unreachable
from space.model.errors import BadRequest, NotFound
from space.model.ids import SandboxId

PREFIX = "/internal/authz"
_AGENT = re.compile(rb"/v1/sandboxes/([^/]*)/(?:commands|files)(/.*)?")
_ID = re.compile(rb"[a-z0-9]{20}")
_ODD = re.compile(rb"%|\\|//|/\.")
"""What no route of the agent has in its path; it would only serve to reach another route after the edge's rewriting."""


async def decide(access: Access, path: bytes, headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers to add to a request that may pass; raises the error that the client gets otherwise.

    `path` is raw, without the prefix and the query. No headers: the request is for the api itself.
    """
    if path.startswith(b"/internal"):
        raise NotFound("There is nothing here.")
    match = _AGENT.fullmatch(path)
    if match is None:
        return []
    caller = await access.caller(headers)
    if _ODD.search(path):
        raise BadRequest("The path of a sandbox's route has no escapes, '//' or '..'; file names go into ?path=.")
    ident = match[1].decode("ascii", "replace")
    if not _ID.fullmatch(match[1]):
        raise NotFound(f"There is no sandbox {ident[:40]!r}: an id is 20 characters of a-z and 0-9.")
    sandbox = await access.reachable(SandboxId(ident), caller.project)
    refused = why_unreachable(sandbox, caller.project, ident)
    if refused is not None:
        raise refused
    assert sandbox is not None
    return [
        (b"x-space-to", b"node"),
        (b"x-space-sandbox", match[1]),
        (b"x-access-token", sandbox.spec.agent_token.encode()),
    ]
