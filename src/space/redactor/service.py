"""The proxy's side: external processing (`envoy.service.ext_proc.v3`) of answers, headers, body and trailers.

The proxy sends an answer piece by piece and waits for what to pass on. It names the secrets by an identifier that the
gateway gave with its decision; the values come from the gateway. What cannot be searched (an encoding, an unknown
identifier) is not passed on.
"""

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc
from envoy.type.v3 import http_status_pb2

from space.model.errors import SpaceError
from space.redactor.needles import needles
from space.redactor.search import Search, Stream
from space.wire.problem import MEDIA_TYPE, to_problem

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]  # the messages are generated, untyped

_AUTHZ = "envoy.filters.http.ext_authz"
_REMOVED = ("content-length", "etag", "content-md5", "digest", "repr-digest", "content-digest", "accept-ranges")
"""Of the body as it was; lengths and digests are oracles for what was taken out."""
_KEPT = 256
_PIECE = 256 * 1024

Fetch = Callable[[str], Awaitable[tuple[str, ...]]]
"""Returns the secrets behind an identifier; raises SpaceError."""


class Unredactable(SpaceError):
    """The answer cannot be searched for secrets."""

    code, status, title = "unredactable_answer", 502, "Answer withheld"


class Redactor(external_processor_pb2_grpc.ExternalProcessorServicer):  # type: ignore[misc] # generated, untyped
    """Processes answers."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._searches: OrderedDict[str, Search] = OrderedDict()

    async def Process(  # noqa: N802 - the name in the protocol
        self, _requests: object, context: "Context"
    ) -> None:
        """Process one answer."""
        stream: Stream | None = None
        search: Search | None = None
        while (request := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined] # not in the stubs
            kind = request.WhichOneof("request")
            if kind == "response_headers":
                try:
                    search = await self._search(request)
                    await context.write(_headers(search, request.response_headers.headers.headers))
                except SpaceError as error:
                    await context.write(_withheld(error))
                    return
                stream = Stream(search)
            elif search is None or stream is None:
                await context.write(_withheld(Unredactable("The answer came in an order that was not expected.")))
                return
            elif kind == "response_body":
                last = request.response_body.end_of_stream
                data = stream.take(request.response_body.body) + (stream.finish() if last else b"")
                if data or last:
                    await _write_body(context, data, last=last)
            elif kind == "response_trailers":
                await _write_body(context, stream.finish(), last=False)
                await context.write(_trailers(search, request.response_trailers.trailers.headers))

    async def _search(self, request: proto.ProcessingRequest) -> Search:
        ident = request.metadata_context.filter_metadata[_AUTHZ].fields["redact"].string_value
        if ident not in self._searches:
            self._searches[ident] = Search(needles(await self._fetch(ident)))
            if len(self._searches) > _KEPT:
                self._searches.popitem(last=False)
        self._searches.move_to_end(ident)
        return self._searches[ident]


def _value(header: Any) -> bytes:
    return bytes(header.raw_value or header.value.encode())


def _changes(search: Search, headers: Any) -> list[base_pb2.HeaderValueOption]:
    """Return the headers that hold a secret, without it. All values of such a name become one."""
    values: dict[str, list[bytes]] = {}
    for header in headers:
        values.setdefault(header.key, []).append(_value(header))
    return [
        base_pb2.HeaderValueOption(
            header=base_pb2.HeaderValue(key=name, raw_value=b", ".join(map(search.replace, found))),
            append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        for name, found in values.items()
        if not name.startswith(":") and any(search.replace(value) != value for value in found)
    ]


def _headers(search: Search, headers: Any) -> proto.ProcessingResponse:
    for header in headers:
        if header.key == "content-encoding" and _value(header).strip().lower() not in (b"", b"identity"):
            raise Unredactable("The server encoded its answer although it was asked not to, so it cannot be searched.")
    mutation = proto.HeaderMutation(set_headers=_changes(search, headers), remove_headers=list(_REMOVED))
    common = proto.CommonResponse(header_mutation=mutation)
    return proto.ProcessingResponse(response_headers=proto.HeadersResponse(response=common))


def _trailers(search: Search, headers: Any) -> proto.ProcessingResponse:
    mutation = proto.HeaderMutation(set_headers=_changes(search, headers))
    return proto.ProcessingResponse(response_trailers=proto.TrailersResponse(header_mutation=mutation))


async def _write_body(context: "Context", data: bytes, *, last: bool) -> None:
    for at in range(0, max(len(data), 1), _PIECE):
        piece = data[at : at + _PIECE]
        streamed = proto.StreamedBodyResponse(body=piece, end_of_stream=last and at + _PIECE >= len(data))
        common = proto.CommonResponse(body_mutation=proto.BodyMutation(streamed_response=streamed))
        await context.write(proto.ProcessingResponse(response_body=proto.BodyResponse(response=common)))


def _withheld(error: SpaceError) -> proto.ProcessingResponse:
    kind = base_pb2.HeaderValueOption(
        header=base_pb2.HeaderValue(key="content-type", raw_value=MEDIA_TYPE.encode()),
        append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )
    return proto.ProcessingResponse(
        immediate_response=proto.ImmediateResponse(
            status=http_status_pb2.HttpStatus(code=error.status),
            headers=proto.HeaderMutation(set_headers=[kind], remove_headers=["content-encoding", "set-cookie"]),
            body=json.dumps(to_problem(error).model_dump()).encode(),
            details="withheld",
        )
    )
