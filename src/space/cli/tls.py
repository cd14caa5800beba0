"""The edge's certificate: read by root from where the operator keeps it, given to the edge, and again when it changes.

The edge runs unprivileged and may not read a key of root's. So certificate and key are copied into one file of its own,
which Envoy takes as a secret (SDS) and watches; replacing that file in one step replaces both, for new connections and
without a restart.
"""

import asyncio
import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from space.host.files import make_dir, write_atomic
from space.layout import Layout
from space.model.errors import InvalidArgument
from space.proxy import edge
from space.settings import HostSettings

_LOOK_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Certificate:
    """Both files' text, and what the certificate says: its names, and until when it is good."""

    chain: str
    key: str
    names: tuple[str, ...]
    not_after: datetime.datetime

    def covers(self, domain: str) -> bool:
        """Tell whether it is good for each name directly below a domain (`:port` aside)."""
        return f"*.{domain.partition(':')[0]}" in self.names


def read(settings: HostSettings) -> Certificate | None:
    """Return what the settings name; None where they name nothing. Raises InvalidArgument saying what is wrong."""
    cert_file, key_file = settings.tls_cert, settings.tls_key
    if cert_file is None and key_file is None:
        return None
    if cert_file is None or key_file is None:
        missing = "SPACE_TLS_CERT" if cert_file is None else "SPACE_TLS_KEY"
        raise InvalidArgument(f"{missing} is not set; a certificate and its key belong together.")
    chain, key = _text(cert_file), _text(key_file)
    try:
        leaf = x509.load_pem_x509_certificates(chain.encode())[0]
    except ValueError:
        raise InvalidArgument(f"{cert_file} holds no certificate in PEM form.") from None
    try:
        private = serialization.load_pem_private_key(key.encode(), None)
    except (ValueError, TypeError):
        raise InvalidArgument(f"{key_file} holds no private key in PEM form without a passphrase.") from None
    if _public(private.public_key()) != _public(leaf.public_key()):
        raise InvalidArgument(f"The key in {key_file} is not that of the first certificate in {cert_file}.")
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    dns = tuple(name.lower() for name in names.get_values_for_type(x509.DNSName))
    return Certificate(chain, key, dns, leaf.not_valid_after_utc)


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}.") from error


def _public(key: object) -> bytes:
    encoded: bytes = key.public_bytes(  # type: ignore[attr-defined] # each kind of key has it
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded


def secret_file(layout: Layout) -> Path:
    """Return where the edge reads it."""
    return layout.run_dir / "tls" / "secret.yaml"


def publish(layout: Layout, certificate: Certificate) -> Path:
    """Give it to the edge, in one step; return where it is."""
    path = secret_file(layout)
    make_dir(path.parent, mode=0o750, uid=0, gid=layout.edge_uid)  # Envoy watches the folder, so it has to read it
    secret = {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        "name": edge.SECRET,
        "tls_certificate": {
            "certificate_chain": {"inline_string": certificate.chain},
            "private_key": {"inline_string": certificate.key},
        },
    }
    write_atomic(path, yaml.safe_dump({"resources": [secret]}), mode=0o400, owner=layout.edge_uid)
    return path


async def follow(layout: Layout, settings: HostSettings, say: Callable[[str], None]) -> None:
    """Publish it again whenever its files have changed and then stayed as they are for a moment, for ever.

    What cannot be used is told and leaves the edge with what it has.
    """
    published = seen = _marks(settings)
    while True:
        await asyncio.sleep(_LOOK_S)
        before, seen = seen, _marks(settings)
        if seen == published or seen != before:
            continue
        published = seen
        try:
            certificate = read(settings)
            assert certificate is not None
            publish(layout, certificate)
        except InvalidArgument as error:
            say(f"the edge keeps its certificate: {error}")
        else:
            say(f"the edge has a new certificate, good until {certificate.not_after:%Y-%m-%d}")


def _marks(settings: HostSettings) -> list[tuple[int, int, int] | None]:
    """Return what tells a file from the one that was there before, for both of them."""
    found: list[tuple[int, int, int] | None] = []
    for path in (settings.tls_cert, settings.tls_key):
        assert path is not None
        try:
            stat = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return found
