"""Certificates as the egress proxy asks for them: what is given, refused, taken back and renewed."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import pydantic
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.secret.v3 import sds_pb2_grpc
from tests.support.egress_world import Ca, make_authority, make_ca

from space.gateway.certs import Certificates, Signer
from space.model.errors import InvalidArgument

DEADLINE_S = 30


@pytest.fixture(scope="module")
def root() -> Ca:
    """What guests trust."""
    return make_ca("SPACE of this test")


@contextlib.asynccontextmanager
async def _served(certificates: Certificates, folder: Path) -> AsyncGenerator[Any]:
    server = grpc.aio.server()
    sds_pb2_grpc.add_SecretDiscoveryServiceServicer_to_server(certificates, server)
    server.add_insecure_port(f"unix:{folder}/sds.sock")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{folder}/sds.sock") as channel:
            yield sds_pb2_grpc.SecretDiscoveryServiceStub(channel)
    finally:
        await server.stop(0)


class _Name:
    """A stream of the proxy for one name."""

    def __init__(self, stub: Any, name: str) -> None:
        self._call = stub.DeltaSecrets()
        self.name = name

    async def ask(self) -> Any:
        await self._call.write(discovery_pb2.DeltaDiscoveryRequest(resource_names_subscribe=[self.name]))
        return await self.next()

    async def next(self) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            return await self._call.read()

    async def end(self) -> None:
        await self._call.done_writing()
        async with asyncio.timeout(DEADLINE_S):
            assert await self._call.read() is grpc.aio.EOF  # type: ignore[attr-defined] # missing in the stubs


def _leaf(answer: Any) -> tuple[x509.Certificate, x509.Certificate, Any]:
    """Return leaf, intermediate and key of an answer."""
    (resource,) = answer.resources
    secret = secret_pb2.Secret()
    assert resource.resource.Unpack(secret)
    leaf, above = x509.load_pem_x509_certificates(secret.tls_certificate.certificate_chain.inline_bytes)
    return leaf, above, serialization.load_pem_private_key(secret.tls_certificate.private_key.inline_bytes, None)


async def test_a_leaf_is_for_its_name_under_the_intermediate(root: Ca, tmp_path: Path) -> None:
    certificates = Certificates(lambda name: name == "allowed.test")
    authority = make_authority(root)
    certificates.use(Signer(authority))
    async with _served(certificates, tmp_path) as stub:
        leaf, above, key = _leaf(await _Name(stub, "allowed.test").ask())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["allowed.test"]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    leaf.verify_directly_issued_by(above)
    above.verify_directly_issued_by(root.certificate)
    assert key.public_key() == leaf.public_key()
    assert leaf.not_valid_after_utc <= above.not_valid_after_utc
    assert leaf.not_valid_after_utc <= authority.not_after


@pytest.mark.parametrize(
    "name",
    [
        "denied.test", ".no-sni", "no-sni", "ALLOWED.test", "allowed.test.", "*.allowed.test", "203.0.113.9",
        "allowed\r\ntest", "../../etc/passwd", "a" * 255, "", "allowed.test\x00.evil.test", "\u0430llowed.test",
    ],
)  # fmt: skip
async def test_other_names_are_refused_at_once_and_leave_nothing(root: Ca, tmp_path: Path, name: str) -> None:
    """EGRESS C1a, M3: the answer is a removal, which ends the handshake; a name is taken exactly as it is compared."""
    certificates = Certificates(lambda found: found != "denied.test")
    certificates.use(Signer(make_authority(root)))
    async with _served(certificates, tmp_path) as stub:
        answer = await _Name(stub, name).ask()
        assert (list(answer.removed_resources), len(answer.resources)) == ([name], 0)
        assert len(certificates) == 0


async def test_without_an_authority_nothing_is_given(tmp_path: Path) -> None:
    async with _served(Certificates(lambda _: True), tmp_path) as stub:
        assert list((await _Name(stub, "allowed.test").ask()).removed_resources) == ["allowed.test"]


async def test_the_name_used_longest_ago_is_taken_back(root: Ca, tmp_path: Path) -> None:
    """EGRESS C1b: legal names are without end under a wildcard, what the proxy holds is not."""
    certificates = Certificates(lambda _: True, max_live=3)
    certificates.use(Signer(make_authority(root)))
    async with _served(certificates, tmp_path) as stub:
        streams = [_Name(stub, f"n{number}.test") for number in range(5)]
        for stream in streams[:3]:
            assert (await stream.ask()).resources
        certificates.touch("n0.test")
        assert (await streams[3].ask()).resources
        assert list((await streams[1].next()).removed_resources) == ["n1.test"]
        assert (await streams[4].ask()).resources
        assert list((await streams[2].next()).removed_resources) == ["n2.test"]
        assert len(certificates) == 3
        await streams[0].end()
        assert len(certificates) == 2


async def test_a_new_intermediate_replaces_what_the_proxy_holds(root: Ca, tmp_path: Path) -> None:
    certificates = Certificates(lambda _: True)
    certificates.use(Signer(make_authority(root)))
    async with _served(certificates, tmp_path) as stub:
        stream = _Name(stub, "allowed.test")
        first = _leaf(await stream.ask())
        certificates.use(Signer(make_authority(root)))
        second = _leaf(await stream.next())
        assert second[1] != first[1]
        second[0].verify_directly_issued_by(second[1])


def test_an_authority_whose_parts_do_not_fit_is_refused(root: Ca) -> None:
    good, other = make_authority(root), make_authority(root)
    curve = ec.generate_private_key(ec.SECP256R1())
    pem = curve.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    for changes in ({"key": other.key}, {"key": pydantic.SecretStr(pem)}, {"certificate": "no pem"}):
        with pytest.raises(InvalidArgument):
            Signer(good.model_copy(update=changes))


async def test_an_authority_that_is_over_signs_nothing(root: Ca, tmp_path: Path) -> None:
    over = make_authority(root).model_copy(update={"not_after": dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)})
    certificates = Certificates(lambda _: True)
    certificates.use(Signer(over))
    async with _served(certificates, tmp_path) as stub:
        assert list((await _Name(stub, "allowed.test").ask()).removed_resources) == ["allowed.test"]
