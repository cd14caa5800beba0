"""Seals what must not be readable in the database, with a master key that is not in it.

AES-256-GCM with a random nonce; the context (what the data is, and of which version) is authenticated with it, so that
a sealed value that was copied to another row, or put back after a rotation, does not open.

The key file has one key on each line, 64 hex digits, the newest first: sealing is with the first, opening with the one
that sealed. To rotate, put a new line on top and restart; all that is stored is then sealed anew, and the old line can
go.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from space.model.errors import InvalidArgument, SpaceError
from space.model.secret import Sealed

_NONCE_BYTES = 12
_LINE = re.compile(r"[0-9a-fA-F]{64}")


class CannotOpen(SpaceError):
    """Sealed data that none of our keys opens, or that is not what belongs there; our log has which."""

    code, status, title = "secret_unreadable", 500, "Stored secret cannot be opened"


class Vault:
    """Holds the keys. One per process."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)
        self._ciphers = {_key_id(key): AESGCM(key) for key in keys}
        self.key_id = _key_id(keys[0])
        """Names the key that seals; it tells nothing about it."""

    def seal(self, plain: str, context: str) -> Sealed:
        """Encrypt a text for one place."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        data = nonce + self._ciphers[self.key_id].encrypt(nonce, plain.encode(), context.encode())
        return Sealed(self.key_id, data)

    def open(self, sealed: Sealed, context: str) -> str:
        """Decrypt what was sealed for this place; raises CannotOpen."""
        cipher = self._ciphers.get(sealed.key_id)
        if cipher is None:
            raise CannotOpen(
                f"A stored secret was sealed with the master key {sealed.key_id}, which this process does not have. "
                "Put that key back into the key file, below the newest."
            )
        nonce, data = sealed.data[:_NONCE_BYTES], sealed.data[_NONCE_BYTES:]
        try:
            return cipher.decrypt(nonce, data, context.encode()).decode()
        except InvalidTag as error:
            raise CannotOpen("A stored secret is damaged, or was moved in the database. Set it again.") from error

    def sign(self, text: str, context: str) -> str:
        """Return a code that only holders of the newest key can make for this text in this place."""
        return _code(self._keys[0], text, context)

    def signed(self, text: str, context: str, code: str) -> bool:
        """Tell whether a code was made by `sign`, under whichever of the keys."""
        return any(hmac.compare_digest(_code(key, text, context).encode(), code.encode()) for key in self._keys)


def _code(key: bytes, text: str, context: str) -> str:
    signing = hmac.digest(key, b"space signing key" + context.encode(), "sha256")
    return hmac.digest(signing, text.encode(), "sha256").hex()


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"space master key" + key).hexdigest()[:16]


def read_keys(text: str) -> list[bytes]:
    """Return the keys of a key file; raises InvalidArgument, which shows none of it."""
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys or not all(_LINE.fullmatch(key) for key in keys):
        raise InvalidArgument("The key file must have one key on each line, 64 hex digits, the newest first.")
    return [bytes.fromhex(key) for key in keys]


def new_key() -> str:
    """Return a fresh key as a line of a key file."""
    return secrets.token_hex(32)
