"""A certificate authority of a test's own, and certificates of it."""

import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates; `pem` is what a client trusts."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's authority")])
        built = _builder(self._name, self._name, self._key.public_key(), 30)
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.pem = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, names: Sequence[str], days: float = 30) -> tuple[str, str]:
        """Return certificate and key in PEM form, good for these names and for so many days."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's server")])
        built = _builder(subject, self._name, key.public_key(), days)
        if names:
            alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
            built = built.add_extension(alternatives, critical=False)
        certificate = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.decode(), private.decode()


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 100 * _DAY)
        .not_valid_after(now + days * _DAY)
    )
