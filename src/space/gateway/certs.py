"""Certificates for the names in guests' ClientHellos, minted when they are asked for (SDS with deltas).

The egress proxy opens one stream for each name and keeps the certificate for as long as the stream lasts. So the
streams are bounded here: the name that was used longest ago is taken back, and a name that nobody may reach is refused
at once, which ends its handshake (EGRESS C1). The proxy does not say for whom it asks (M3): a name is minted when some
sandbox of this host was given an address for it and may still reach it. That is no permission: each request is judged.

Leaves are signed by this worker's intermediate, which the control plane renews; the root's key is never here.
"""

import asyncio
import datetime as dt
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.secret.v3 import sds_pb2_grpc

from space.model.errors import InvalidArgument
from space.model.policy_names import InvalidName, canonical_host
from space.telemetry import logger
from space.wire import gateway as wire

MAX_LIVE = 512
"""Certificates that the proxy holds at once, about 50 KB of it each."""

_TYPE = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
_LEAF_LIFE = dt.timedelta(hours=24)
_BACKDATED = dt.timedelta(hours=1)
_MAX_CN = 64

log = logger()

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]  # the messages are generated, untyped


class Signer:
    """Mints leaves under one intermediate. All leaves of a process have one key: it never leaves this host's memory."""

    def __init__(self, authority: wire.Authority) -> None:
        """Raises InvalidArgument where the parts cannot be read or do not belong together."""
        try:
            self._issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
            key = serialization.load_pem_private_key(authority.key.get_secret_value().encode(), None)
        except ValueError as error:
            raise InvalidArgument("The authority's certificate or key cannot be read.") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self._issuer.public_key():
            raise InvalidArgument("The authority's key is not the elliptic-curve key of its certificate.")
        self._issuer_key = key
        self._chain = authority.certificate
        self._until = min(authority.not_after, self._issuer.not_valid_after_utc)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._key_pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def usable(self) -> bool:
        """Tell whether what it signs now would be valid."""
        return dt.datetime.now(dt.UTC) < self._until

    def mint(self, name: str) -> secret_pb2.Secret:
        """Return the certificate of a canonical name, with its key."""
        now = dt.datetime.now(dt.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if len(name) <= _MAX_CN else [])
        leaf = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._issuer.subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - _BACKDATED, self._issuer.not_valid_before_utc))
            .not_valid_after(min(now + _LEAF_LIFE, self._until))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=not subject.rdns)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._issuer_key.public_key()), critical=False
            )
            .sign(self._issuer_key, hashes.SHA256())
        )
        chain = leaf.public_bytes(serialization.Encoding.PEM) + self._chain.encode()
        made = secret_pb2.Secret(name=name)
        made.tls_certificate.certificate_chain.inline_bytes = chain
        made.tls_certificate.private_key.inline_bytes = self._key_pem
        return made


class _Stream:
    """One open stream of the proxy: what is still to be sent on it."""

    def __init__(self) -> None:
        self.out: asyncio.Queue[discovery_pb2.DeltaDiscoveryResponse | None] = asyncio.Queue()


class Certificates(sds_pb2_grpc.SecretDiscoveryServiceServicer):  # type: ignore[misc] # generated, untyped
    """Answers the proxy. `wanted` says whether a canonical name may be reached by some sandbox."""

    def __init__(self, wanted: Callable[[str], bool], max_live: int = MAX_LIVE) -> None:
        self._wanted = wanted
        self._max_live = max_live
        self._signer: Signer | None = None
        self._live: OrderedDict[str, _Stream] = OrderedDict()
        self._versions = itertools.count(1)

    def __len__(self) -> int:
        """Return how many certificates the proxy holds."""
        return len(self._live)

    def use(self, signer: Signer) -> None:
        """Sign with this from now on, and replace what the proxy holds."""
        self._signer = signer
        for name, stream in self._live.items():
            stream.out.put_nowait(self._given(signer, name))

    def touch(self, name: str) -> None:
        """Note that a name is in use."""
        if name in self._live:
            self._live.move_to_end(name)

    async def DeltaSecrets(  # noqa: N802 - the name in the protocol
        self, _requests: object, context: "Context"
    ) -> None:
        """Serve one stream, for one name as a rule, until the proxy ends it."""
        stream = _Stream()
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(stream, context))
                await self._read(stream, context)
                writer.cancel()
        finally:
            for name in [name for name, owner in self._live.items() if owner is stream]:
                del self._live[name]

    async def _write(self, stream: _Stream, context: "Context") -> None:
        while True:
            await context.write(await stream.out.get())

    async def _read(self, stream: _Stream, context: "Context") -> None:
        while True:
            request = await context.read()
            if request is grpc.aio.EOF:  # type: ignore[attr-defined] # missing in the stubs
                return
            if request.HasField("error_detail"):
                log.error("certificate_rejected", detail=request.error_detail.message)
            for name in request.resource_names_unsubscribe:
                if self._live.get(name) is stream:
                    del self._live[name]
            for name in request.resource_names_subscribe:
                stream.out.put_nowait(self._answer(stream, name))

    def _answer(self, stream: _Stream, name: str) -> discovery_pb2.DeltaDiscoveryResponse:
        signer = self._signer
        if signer is None or not signer.usable() or not _is_canonical(name) or not self._wanted(name):
            return self._taken_back(name)
        self._live[name] = stream
        self._live.move_to_end(name)
        while len(self._live) > self._max_live:
            oldest, owner = self._live.popitem(last=False)
            owner.out.put_nowait(self._taken_back(oldest))
        return self._given(signer, name)

    def _given(self, signer: Signer, name: str) -> discovery_pb2.DeltaDiscoveryResponse:
        version = str(next(self._versions))
        resource = discovery_pb2.Resource(name=name, version=version)
        resource.resource.Pack(signer.mint(name))
        return discovery_pb2.DeltaDiscoveryResponse(
            system_version_info=version, nonce=version, type_url=_TYPE, resources=[resource]
        )

    def _taken_back(self, name: str) -> discovery_pb2.DeltaDiscoveryResponse:
        version = str(next(self._versions))
        return discovery_pb2.DeltaDiscoveryResponse(
            system_version_info=version, nonce=version, type_url=_TYPE, removed_resources=[name]
        )


def _is_canonical(name: str) -> bool:
    """Tell whether a name from a ClientHello is written exactly as policies are compared; what differs is refused."""
    try:
        return canonical_host(name) == name
    except InvalidName:
        return False
