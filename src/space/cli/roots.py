"""Which authorities may vouch for the servers that sandboxes reach: the system's, and those that the operator adds."""

from pathlib import Path

from space.host.files import write_atomic
from space.layout import Layout
from space.model.errors import InvalidArgument

_SYSTEM = (
    Path("/etc/ssl/certs/ca-certificates.crt"),  # Debian, Alpine
    Path("/etc/pki/tls/certs/ca-bundle.crt"),  # Fedora
    Path("/etc/ssl/ca-bundle.pem"),  # SUSE
)
_PEM = "-----BEGIN CERTIFICATE-----"


def write_bundle(layout: Layout, added: Path | None) -> Path:
    """Write the roots into one file that the gateway and the egress proxy read at their start; return its path.

    `added` is a PEM file of further roots. Raises InvalidArgument where it holds none, or where there is none at all.
    """
    system = next((path for path in _SYSTEM if path.is_file()), None)
    texts = [] if system is None else [system.read_text()]
    if added is not None:
        texts.append(read_added(added))
    if not texts:
        raise InvalidArgument("This host has no root certificates; install the package ca-certificates.")
    path = layout.run_dir / "settings" / "roots.pem"
    write_atomic(path, "\n".join(texts), mode=0o444)
    return path


def read_added(path: Path) -> str:
    """Return the roots that the operator adds; raises InvalidArgument."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"SPACE_UPSTREAM_CA: {path} cannot be read.") from error
    if _PEM not in text:
        raise InvalidArgument(f"SPACE_UPSTREAM_CA: {path} holds no certificate in PEM form.")
    return text
