"""The master keys that secrets are encrypted with in the database: a file that only root reads, given to the api."""

from pathlib import Path

from pydantic import SecretStr

from space.control.vault import new_key, read_keys
from space.host.files import write_atomic
from space.layout import Layout
from space.model.errors import InvalidArgument
from space.settings import HostSettings

_OTHERS = 0o077


def ensure(layout: Layout, settings: HostSettings) -> tuple[SecretStr, ...]:
    """Return the keys, the newest first; the first start makes one where the operator has no file of his own.

    Raises InvalidArgument for a file that is missing, malformed, or open to other users.
    """
    path = settings.secret_key_file or layout.secret_key_file
    if settings.secret_key_file is None and not path.exists():
        write_atomic(path, new_key() + "\n", mode=0o600)
    return tuple(SecretStr(key.hex()) for key in read(path))


def read(path: Path) -> list[bytes]:
    """Return the keys in a file; raises InvalidArgument."""
    try:
        mode, text = path.stat().st_mode, path.read_text()
    except OSError as error:
        raise InvalidArgument(f"SPACE_SECRET_KEY_FILE: {path} cannot be read: {error.strerror}.") from error
    if mode & _OTHERS:
        raise InvalidArgument(f"{path} can be read by other users; close it: chmod 600 {path}")
    try:
        return read_keys(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error
