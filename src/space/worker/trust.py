"""The root certificate that guests trust: that of the gateway's certificates, the same for the whole deployment.

It is public, so it is kept on disk: a guest that starts right after the worker did has it too. The key of it never
leaves the control plane.
"""

from pathlib import Path

from cryptography import x509

from space.host.files import write_atomic
from space.model.errors import InvalidArgument
from space.wire.gateway import Authority
from space.wire.worker import AuthorityInfo


class TrustedRoot:
    """The certificate kept in `file`, and as PEM in `pem`; "" until the control plane said which it is."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.pem = file.read_text() if file.exists() else ""

    def keep(self, pem: str) -> None:
        """Have each guest that is started, or woken, from now on trust this one."""
        if pem != self.pem:
            write_atomic(self._file, pem)
            self.pem = pem


def describe(authority: Authority) -> AuthorityInfo:
    """Return what may be said of an authority; raises InvalidArgument where its certificates cannot be read."""
    try:
        x509.load_pem_x509_certificate(authority.root.encode())
        serial = x509.load_pem_x509_certificate(authority.certificate.encode()).serial_number
    except ValueError as error:
        raise InvalidArgument("The authority's certificates cannot be read.") from error
    return AuthorityInfo(serial=f"{serial:x}", not_after=authority.not_after)
