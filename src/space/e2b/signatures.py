"""Signed URLs of files. They name no sandbox where all sandboxes share an address: its token has to be found. Pure.

A signature is `v1_` and the unpadded base64 of the SHA-256 of `<path>:<read|write>:<user>:<token>`, and `:<expiry>`
where there is one. The agent judges it again with what the request says; here only who is meant is found out.
"""

import base64
import dataclasses
import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import parse_qs

PATH = b"/files"
_OPERATIONS = {"GET": "read", "HEAD": "read", "POST": "write"}
_MAX_CHARS = 64
_EXPIRY = re.compile("[0-9]{0,12}")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Signed:
    """What a signed request says. `expires` in seconds of Unix time, None for never."""

    before_token: str
    after_token: str
    signature: str
    expires: int | None

    def expired(self, now: float) -> bool:
        """Tell whether its time is over."""
        return self.expires is not None and self.expires < now

    def of(self, token: str) -> bool:
        """Tell whether it was signed with this token."""
        return find(self, [(True, token)]) is not None


def signed(method: str, path: bytes, query: bytes) -> Signed | None:
    """Return what a request says that is for a signed URL; None for any other.

    `method` is what is to be done: for the question that a browser asks before (OPTIONS), the one that it asks about.
    """
    if path != PATH or b"signature=" not in query or method not in _OPERATIONS:
        return None
    fields = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    signature, expiry = fields.get("signature", [""])[0], fields.get("signature_expiration", [""])[0]
    if not 0 < len(signature) <= _MAX_CHARS or not _EXPIRY.fullmatch(expiry):
        return None
    file, user = fields.get("path", [""])[0], fields.get("username", [""])[0]
    before = f"{file}:{_OPERATIONS[method]}:{user}:"
    return Signed(before, f":{expiry}" if expiry else "", signature, int(expiry) if expiry else None)


def find(asked: Signed, tokens: Iterable[tuple[T, str]]) -> T | None:
    """Return what the token belongs to that made a signature; None where none of them did.

    Every token is tried and compared in full, so that the time it takes tells nothing about any.
    """
    start = hashlib.sha256(asked.before_token.encode())
    end, wanted = asked.after_token.encode(), asked.signature.encode()
    found: T | None = None
    for owner, token in tokens:
        digest = start.copy()
        digest.update(token.encode() + end)
        text = b"v1_" + base64.b64encode(digest.digest()).rstrip(b"=")
        if token and hmac.compare_digest(text, wanted):
            found = owner
    return found
