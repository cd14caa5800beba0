"""What the egress proxy asks over gRPC: decisions on one socket, and on another certificates and the log of what ended.

The identity of a request is the connection's (source address, dialled address, TLS name, chain); of its headers only
what the upstream will see anyway plays a part.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.accesslog.v3 import als_pb2_grpc
from envoy.service.auth.v3 import external_auth_pb2
from envoy.service.secret.v3 import sds_pb2_grpc
from google.protobuf import struct_pb2
from google.rpc import code_pb2, status_pb2

from space.gateway import unary
from space.gateway.accesslog import AccessLog
from space.gateway.authz import denied
from space.gateway.certs import Certificates
from space.gateway.egress import Egress, Let
from space.gateway.identity import Asked
from space.model.errors import SpaceError
from space.telemetry import logger

_GRACE_S = 1.0
_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD

log = logger()


class EgressAuthorization:
    """Answers for the egress proxy."""

    def __init__(self, egress: Egress, certificates: Certificates) -> None:
        self._egress, self._certificates = egress, certificates

    async def check(self, question: bytes) -> bytes:
        """Judge one request. An exception here is a refusal: Envoy answers 503 for a check that failed."""
        asked, headers = _read(external_auth_pb2.CheckRequest.FromString(question).attributes)
        try:
            let = await self._egress.decide(asked, headers)
        except SpaceError as error:
            if error.__cause__ is not None:
                log.warning("egress_failed", code=error.slug, detail=str(error), cause=repr(error.__cause__))
            return denied(error)
        self._certificates.touch(asked.sni)
        return _let(let)


def _read(attributes: object) -> tuple[Asked, dict[str, list[str]]]:
    """Return what the proxy reports, and the guest's headers by lower-case name."""
    http = attributes.request.http  # type: ignore[attr-defined] # generated, untyped
    source = attributes.source.address.socket_address  # type: ignore[attr-defined]
    destination = attributes.destination.address.socket_address  # type: ignore[attr-defined]
    headers: dict[str, list[str]] = defaultdict(list)
    for header in http.header_map.headers:
        # HTTP's own charset for what is not ASCII: every byte is a character, so that nothing is lost or merged
        headers[header.key.lower()].append(header.raw_value.decode("latin-1"))
    upgrade = headers.get("upgrade")
    asked = Asked(
        source=source.address,
        source_port=source.port_value,
        destination=destination.address,
        destination_port=destination.port_value,
        chain=attributes.context_extensions.get("chain", ""),  # type: ignore[attr-defined]
        sni=attributes.tls_session.sni,  # type: ignore[attr-defined]
        authority=http.host,
        method=http.method,
        path=http.path,
        upgrade=None if upgrade is None else ",".join(upgrade).lower(),
        alone=http.protocol.startswith("HTTP/1"),
    )
    return asked, {name: values for name, values in headers.items() if not name.startswith(":")}


def _let(let: Let) -> bytes:
    headers = {":authority": let.authority, **let.injection.headers}
    if let.injection.path is not None:
        headers[":path"] = let.injection.path
    if let.upgrade:
        headers["x-space-upgrade"] = "websocket"
    remove = list(let.injection.remove)
    fields = {
        "dial": struct_pb2.Value(string_value=let.dial),
        # what the access log names the request by; never a secret, since metadata can be logged
        "seq": struct_pb2.Value(string_value=str(let.seq)),
    }
    if let.redact is not None:
        headers |= {"x-space-redact": "1", "accept-encoding": "identity"}  # an encoded answer could not be searched
        remove += ["range", "if-range"]  # nor could one in slices
        fields["redact"] = struct_pb2.Value(string_value=let.redact)
    answer = external_auth_pb2.CheckResponse(
        status=status_pb2.Status(code=code_pb2.OK),
        ok_response=external_auth_pb2.OkHttpResponse(
            headers=[
                base_pb2.HeaderValueOption(header=base_pb2.HeaderValue(key=key, value=value), append_action=_OVERWRITE)
                for key, value in headers.items()
            ],
            headers_to_remove=remove,
        ),
        dynamic_metadata=struct_pb2.Struct(fields=fields),
    )
    return cast("bytes", answer.SerializeToString())


@asynccontextmanager
async def serving(
    decisions: Path, others: Path, egress: Egress, certificates: Certificates, access_log: AccessLog
) -> AsyncGenerator[None]:
    """Serve the egress proxy on two unix sockets while the context lasts. The umask decides who may connect."""
    # names are asked for in one stream each; Envoy bounds them
    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", 65536)])
    sds_pb2_grpc.add_SecretDiscoveryServiceServicer_to_server(certificates, server)
    als_pb2_grpc.add_AccessLogServiceServicer_to_server(access_log, server)
    server.add_insecure_port(f"unix:{others}")
    async with unary.serving(decisions, EgressAuthorization(egress, certificates).check):
        await server.start()
        try:
            yield
        finally:
            await server.stop(_GRACE_S)
