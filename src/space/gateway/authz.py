"""The decision over gRPC: Envoy's external authorization (`envoy.service.auth.v3`), asked once for each request.

The address to dial goes back as dynamic metadata, which no header of a client or guest can set.
"""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import cast

from envoy.config.core.v3 import base_pb2
from envoy.service.auth.v3 import external_auth_pb2
from envoy.type.v3 import http_status_pb2
from google.protobuf import struct_pb2
from google.rpc import code_pb2, status_pb2

from space.gateway import ingress, unary
from space.gateway.slots import SlotMap
from space.model.errors import SpaceError
from space.wire.problem import MEDIA_TYPE, headers_of, to_problem
from space.wire.refusal import navigates


class IngressAuthorization:
    """Answers for the ingress proxy."""

    def __init__(self, slots: SlotMap) -> None:
        self._slots = slots

    async def check(self, question: bytes) -> bytes:
        """Judge one request. An exception here is a refusal: Envoy answers 503 for a check that failed."""
        http = external_auth_pb2.CheckRequest.FromString(question).attributes.request.http
        sandbox, port = http.headers.get("x-space-sandbox", ""), http.headers.get("x-space-port", "")
        match ingress.decide(self._slots, sandbox, port, http.method, http.path):
            case ingress.Allow() as allowed:
                return _allowed(allowed, sandbox)
            case ingress.Deny(error):
                if isinstance(error, SpaceError):
                    return denied(error)
                navigating = navigates(http.headers.get("accept", ""))
                return _denied(error.status, error.headers(navigating=navigating), error.body(navigating=navigating))


def _allowed(allowed: ingress.Allow, sandbox: str) -> bytes:
    """Return the address to dial; and where a port was named, what the proxy's own answers are worded with."""
    metadata = struct_pb2.Struct(fields={"dst": struct_pb2.Value(string_value=allowed.dial)})
    if allowed.port is not None:
        metadata.update({"sandbox": sandbox, "port": allowed.port})
    answer = external_auth_pb2.CheckResponse(
        status=status_pb2.Status(code=code_pb2.OK),
        # Envoy looks for a route again, now that the metadata is there, only when some header was changed too
        ok_response=external_auth_pb2.OkHttpResponse(headers_to_remove=["x-space-sandbox"]),
        dynamic_metadata=metadata,
    )
    return cast("bytes", answer.SerializeToString())


def denied(error: SpaceError) -> bytes:
    """Return the refusal that carries an error as the answer."""
    headers = {"content-type": MEDIA_TYPE, **headers_of(error)}
    return _denied(error.status, headers, to_problem(error).model_dump_json())


def _denied(status: int, headers: dict[str, str], body: str) -> bytes:
    answer = external_auth_pb2.CheckResponse(
        status=status_pb2.Status(code=code_pb2.PERMISSION_DENIED),
        denied_response=external_auth_pb2.DeniedHttpResponse(
            status=http_status_pb2.HttpStatus(code=status),
            headers=[
                base_pb2.HeaderValueOption(header=base_pb2.HeaderValue(key=key, value=value))
                for key, value in headers.items()
            ],
            body=body,
        ),
    )
    return cast("bytes", answer.SerializeToString())


def serving(socket: Path, slots: SlotMap) -> AbstractAsyncContextManager[None]:
    """Serve decisions on a unix socket while the context lasts."""
    return unary.serving(socket, IngressAuthorization(slots).check)
