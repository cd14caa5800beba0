"""In which forms a secret may come back in an answer: as it is, and as servers usually write what they were sent.

A server that transforms it otherwise (reversed, hashed, in hex, encrypted) is not caught; do not bind a credential to a
host that does.
"""

import base64
import html
import json
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

MIN_LENGTH = 6
"""Characters of a secret that is searched for. Shorter ones are everywhere, and taking them out would tear answers."""


def needles(secrets: Iterable[str]) -> tuple[bytes, ...]:
    """Return what to search for, longest first; empty where no secret is long enough."""
    found = {form for secret in secrets if len(secret) >= MIN_LENGTH for form in _forms(secret)}
    return tuple(sorted((form for form in found if len(form) >= MIN_LENGTH), key=lambda form: (-len(form), form)))


def _forms(secret: str) -> Iterator[bytes]:
    raw = secret.encode()
    yield raw
    quoted = quote(secret, safe="")
    for text in (quoted, quote_plus(secret)):
        yield text.encode()
        yield _lower_escapes(text).encode()
    for text in (json.dumps(secret), json.dumps(secret, ensure_ascii=False)):
        yield text[1:-1].encode()
        yield text[1:-1].replace("/", "\\/").encode()
    yield html.escape(secret).encode()
    for offset in range(3):
        core = _base64_core(raw, offset)
        yield core
        yield core.translate(bytes.maketrans(b"+/", b"-_"))


def _lower_escapes(quoted: str) -> str:
    """Return percent-encoding with small hexadecimal digits."""
    head, *rest = quoted.split("%")
    return "%".join([head, *(part[:2].lower() + part[2:] for part in rest)])


def _base64_core(raw: bytes, offset: int) -> bytes:
    """Return the characters that base64 surely has where these bytes begin at `offset` in a group of three."""
    encoded = base64.b64encode(bytes(offset) + raw).rstrip(b"=")
    first = (0, 2, 3)[offset]
    last = len(encoded) - (1 if (offset + len(raw)) % 3 else 0)
    return encoded[first:last]
