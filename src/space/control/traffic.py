"""The token that lets requests in to a sandbox's private ports.

It follows from the sandbox's own token and not the other way round, so whoever is given it can visit the user's servers
and do nothing else. It is nowhere stored, and a fork's is another.
"""

import hashlib
import hmac


def traffic_token(agent_token: str) -> str:
    """Return it, 64 hex digits."""
    return hmac.new(agent_token.encode(), b"space traffic", hashlib.sha256).hexdigest()


def is_traffic_token(text: str, agent_token: str) -> bool:
    """Tell whether a text is it, in a time that tells nothing."""
    return bool(agent_token) and hmac.compare_digest(text.encode(), traffic_token(agent_token).encode())
