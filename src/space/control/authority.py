"""The certificate authority that guests trust: one root for the deployment, an intermediate for each worker.

The root's key is sealed in the database and is in the clear only in this process, while an intermediate is issued. An
intermediate lives a day and is renewed at half of that; its key goes to the worker, which keeps it in memory.
"""

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from space.control.plane import Plane
from space.model.errors import Unavailable
from space.model.ids import WorkerId, new_id
from space.store import authority
from space.store.authority import SealedRoot
from space.wire.gateway import Authority
from space.wire.worker import AuthorityInfo

ROOT_LIFE = datetime.timedelta(days=3650)
LIFE = datetime.timedelta(hours=24)
"""Of an intermediate."""

_EARLIER = datetime.timedelta(hours=1)
"""Certificates are valid from a while ago: a guest's clock may be a little behind."""


def due(held: AuthorityInfo | None) -> bool:
    """Tell whether a worker needs a new intermediate: it has none, or half of its life is over."""
    return held is None or held.not_after - datetime.datetime.now(datetime.UTC) < LIFE / 2


async def issue(plane: Plane, worker: WorkerId) -> Authority:
    """Make an intermediate for a worker; the first call for a deployment makes its root. Raises CannotOpen."""
    root = await _root(plane)
    certificate = x509.load_pem_x509_certificate(root.certificate.encode())
    root_key = serialization.load_pem_private_key(plane.vault.open(root.key, _context(root.id)).encode(), None)
    if not isinstance(root_key, ec.EllipticCurvePrivateKey):
        raise TypeError("the root's key is not one that we made")
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    made = _certificate(f"SPACE worker {worker}", key, certificate.subject, root_key, now + LIFE, path_length=0)
    return Authority(root=root.certificate, certificate=_pem(made), key=SecretStr(_key_pem(key)), not_after=now + LIFE)


async def _root(plane: Plane) -> SealedRoot:
    found = await authority.get(plane.db)
    if found is None:
        await authority.insert(plane.db, _new_root(plane))
        found = await authority.get(plane.db)
    if found is None:
        raise Unavailable("The database lost the authority's root just now. Try again.")
    return found


def _new_root(plane: Plane) -> SealedRoot:
    ident = new_id()
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"SPACE {ident}"
    until = datetime.datetime.now(datetime.UTC) + ROOT_LIFE
    made = _certificate(name, key, _name(name), key, until, path_length=1)
    return SealedRoot(ident, _pem(made), plane.vault.seal(_key_pem(key), _context(ident)))


async def reseal(plane: Plane) -> bool:
    """Seal the root's key anew where another master key did; tells whether it was so."""
    root = await authority.get(plane.db)
    if root is None or root.key.key_id == plane.vault.key_id:
        return False
    plain = plane.vault.open(root.key, _context(root.id))
    await authority.reseal(plane.db, root.id, plane.vault.seal(plain, _context(root.id)))
    return True


def _context(ident: str) -> str:
    return f"authority {ident}"


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer_name: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    until: datetime.datetime,
    *,
    path_length: int,
) -> x509.Certificate:
    """Return a certificate of an authority (RFC 5280)."""
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.now(datetime.UTC) - _EARLIER)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _name(name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "SPACE")]
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
