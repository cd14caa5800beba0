"""Identifiers: their types, their alphabet, and how new ones are made.

Every id that a client sees is 20 characters of `[a-z0-9]` (103 bits), so that it fits a DNS label, a file name and a
header without quoting. API keys have the form `e2b_<40 hex>`, which older clients of that surface insist on.
"""

import hashlib
import re
import secrets
import string
from typing import NewType

SandboxId = NewType("SandboxId", str)
ProjectId = NewType("ProjectId", str)
OperationId = NewType("OperationId", str)
KeyId = NewType("KeyId", str)
WorkerId = NewType("WorkerId", str)
VolumeId = NewType("VolumeId", str)
TemplateDigest = NewType("TemplateDigest", str)
"""`sha256:<64 hex>` of everything a template is built from."""

_ALPHABET = string.ascii_lowercase + string.digits
_ID_CHARS = 20
_IDS = len(_ALPHABET) ** _ID_CHARS
_ID = re.compile(r"[a-z0-9]{20}")
_KEY = re.compile(r"e2b_[0-9a-f]{40}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TEMPLATE_NAME = r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?"
_NAME = re.compile(TEMPLATE_NAME)


def new_id() -> str:
    """Return a fresh id: 20 characters of `[a-z0-9]`."""
    number, found = secrets.randbelow(_IDS), []  # one number: asking the kernel for each character takes its time
    for _ in range(_ID_CHARS):
        number, digit = divmod(number, len(_ALPHABET))
        found.append(_ALPHABET[digit])
    return "".join(found)


def is_id(text: str) -> bool:
    """Tell whether `text` has the form of an id; checked before any id becomes part of a path."""
    return _ID.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """Tell whether `text` has the form of a template digest."""
    return _DIGEST.fullmatch(text) is not None


def is_template_name(text: str) -> bool:
    """Tell whether `text` may name a template: a DNS-like label of at most 63 characters, dots and underscores too."""
    return _NAME.fullmatch(text) is not None


def new_api_key() -> str:
    """Return a fresh API key, `e2b_<40 hex>` (160 bits)."""
    return "e2b_" + secrets.token_hex(20)


def is_api_key(text: str) -> bool:
    """Tell whether `text` has the form of an API key."""
    return _KEY.fullmatch(text) is not None


def hash_api_key(key: str) -> str:
    """Return the form in which a key is stored: plain SHA-256, enough for 160 random bits."""
    return hashlib.sha256(key.encode()).hexdigest()
