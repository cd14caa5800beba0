"""What the egress proxy says of requests that ended, and each second of those that go on: bytes, time, status.

It may say too little (its buffer is bounded) but decides nothing, save that a rule's budget of bytes is used up, or a
sandbox's of connections that come to nothing.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc

from space.gateway.audit import MAX_PATH, Audit
from space.gateway.flights import Flight
from space.gateway.guests import Guest, Guests
from space.gateway.orders import Orders
from space.gateway.resolve import Resolver
from space.model.errors import Unavailable
from space.model.ids import SandboxId
from space.wire import gateway as wire

_AUTHZ = "envoy.filters.http.ext_authz"
_JUDGED = "ext_authz_denied"

End = Callable[[Guest, list[int]], None]
"""Has connections of a guest ended, soon."""
Wasted = Callable[[Guest], None]
"""Counts a connection that came to nothing."""
_NO_CIPHER = 0xFFFF
"""What stands for the cipher of a handshake that was not finished."""


class AccessLog(als_pb2_grpc.AccessLogServiceServicer):  # type: ignore[misc] # generated, untyped
    """Takes the proxy's log."""

    def __init__(self, guests: Guests, resolver: Resolver, audit: Audit, end: End, wasted: Wasted) -> None:
        self._guests, self._resolver, self._audit, self._end, self._wasted = guests, resolver, audit, end, wasted

    async def StreamAccessLogs(  # noqa: N802 - the name in the protocol
        self, requests: AsyncIterator[als_pb2.StreamAccessLogsMessage], _context: object
    ) -> als_pb2.StreamAccessLogsResponse:
        """Take one stream of it, of one thread of the proxy, until that ends."""
        of_requests = False
        try:
            async for message in requests:
                for entry in message.tcp_logs.log_entry:
                    self._take_connection(entry.common_properties)
                of_requests = of_requests or message.HasField("http_logs")
                for entry in message.http_logs.log_entry:
                    self._take(entry)
        finally:
            # the proxy is gone, or what it said meanwhile is lost: nothing is known any more of what is under way
            for guest in self._guests if of_requests else ():
                guest.unseen = guest.unseen or len(guest.flights) > 0
                guest.flights.clear()
        return als_pb2.StreamAccessLogsResponse()

    def _take_connection(self, common: accesslog_pb2.AccessLogCommon) -> None:
        tls = common.tls_properties
        unfinished = common.HasField("tls_properties") and tls.tls_cipher_suite.value == _NO_CIPHER
        if unfinished or common.response_flags.downstream_protocol_error:
            guest = self._guests.at(common.downstream_direct_remote_address.socket_address.address)
            if guest is not None:
                self._wasted(guest)

    def _take(self, entry: accesslog_pb2.HTTPAccessLogEntry) -> None:
        common = entry.common_properties
        guest = self._guests.at(common.downstream_direct_remote_address.socket_address.address)
        if guest is None:
            return
        fields = common.metadata.filter_metadata[_AUTHZ].fields
        if "seq" in fields:
            flight = guest.flights.get(int(fields["seq"].string_value))
            if flight is not None:
                self._progress(guest, flight, entry)
        elif not common.intermediate_log_entry and entry.response.response_code_details != _JUDGED:
            self._refused(guest.sandbox, entry)

    def _progress(self, guest: Guest, flight: Flight, entry: accesslog_pb2.HTTPAccessLogEntry) -> None:
        common, request, response = entry.common_properties, entry.request, entry.response
        sent = request.request_headers_bytes + request.request_body_bytes
        received = response.response_headers_bytes + response.response_body_bytes
        guest.budgets.use(flight.rule, sent - flight.sent_bytes, received - flight.received_bytes)
        flight.sent_bytes, flight.received_bytes = sent, received
        if common.intermediate_log_entry:
            if guest.budgets.spent(guest.policy, flight.rule):
                self._end(guest, [flight.port])
            return
        guest.flights.end(flight.seq)
        failed = common.response_flags.upstream_connection_failure
        if failed and flight.via is None:  # else it is the upstream proxy's failure
            self._resolver.note_failure(flight.address)
        self._audit.note(
            "traffic",
            guest.sandbox,
            generation=guest.generation,
            protocol=flight.request.protocol,
            name=flight.request.host,
            port=flight.request.port,
            address=str(flight.address),
            of=flight.seq,
            status=response.response_code.value,
            why="its server could not be reached" if failed else None,
            sent_bytes=sent,
            received_bytes=received,
            ms=round((time.monotonic() - flight.began_s) * 1000, 1),
        )

    def _refused(self, sandbox: SandboxId, entry: accesslog_pb2.HTTPAccessLogEntry) -> None:
        self._audit.note(
            "refused",
            sandbox,
            path=entry.request.path.partition("?")[0][:MAX_PATH],
            status=entry.response.response_code.value,
            why=entry.response.response_code_details[:100],
        )


class Ending:
    """Has the worker end connections, without anybody waiting for it."""

    def __init__(self) -> None:
        self._wanted: asyncio.Queue[tuple[Guest, list[int]]] = asyncio.Queue(maxsize=1024)

    def end(self, guest: Guest, ports: list[int]) -> None:
        """Have them ended soon; the proxy reminds of what goes on each second, so one that is forgotten comes again."""
        if not self._wanted.full():
            self._wanted.put_nowait((guest, ports))

    async def run(self, orders: Orders) -> None:
        """Pass on what is wanted, for ever."""
        while True:
            guest, ports = await self._wanted.get()
            with contextlib.suppress(Unavailable):
                await orders.carry_out(
                    lambda order: wire.EndConnections(
                        order=order,
                        sandbox=guest.sandbox,  # noqa: B023 - called before the next turn
                        address=guest.address,  # noqa: B023
                        ports=ports,  # noqa: B023
                    )
                )
