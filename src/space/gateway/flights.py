"""What of a guest is on its way: the requests that were let through and have not ended, by connection.

The egress proxy asks once for each request and says afterwards how it ended. Between the two, a download or a WebSocket
runs without anybody being asked; when a policy is tightened, this says which connections carry what it refuses
(EGRESS H7). A connection is known by the guest's port as the proxy sees it.
"""

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv4Address

from space.model.policy import Request
from space.model.policy_upstream import UpstreamProxy

MAX_IN_FLIGHT = 512
"""Requests of one sandbox at once. The proxy has no such limit of its own (512 connections of 100 streams each)."""
_MAX_UNTOLD = 4096
"""Flights whose end the access log has not told; it is late, and may lose some."""
_MAX_CONNECTIONS = 1024
"""Connections remembered. A slot lets 512 be open at once; older ones than this are closed already."""


@dataclasses.dataclass(slots=True)
class Flight:
    """A request that was let through: to which address, by which rule (None: the default), and when (monotonic s).

    `via`: through which upstream proxy. The bytes are those that the proxy has told of so far.
    """

    seq: int
    port: int
    request: Request
    address: IPv4Address
    rule: int | None
    began_s: float
    sent_bytes: int = 0
    received_bytes: int = 0
    via: UpstreamProxy | None = None


@dataclasses.dataclass(slots=True)
class _Connection:
    under_way: dict[int, Flight] = dataclasses.field(default_factory=dict)
    last: Flight | None = None


class Flights:
    """All of one guest. Its length is how many requests are under way."""

    def __init__(self) -> None:
        self._connections: OrderedDict[int, _Connection] = OrderedDict()
        self._told: OrderedDict[int, Flight] = OrderedDict()
        self._under_way = 0

    def __len__(self) -> int:
        return self._under_way

    def get(self, seq: int) -> Flight | None:
        """Return a flight whose end was not told yet."""
        return self._told.get(seq)

    def begin(self, flight: Flight, *, alone: bool) -> None:
        """Note that a request was let through. `alone`: its connection carries one at a time (HTTP/1), so that those
        before it have ended, although that may be told later or never.
        """
        connection = self._connections.setdefault(flight.port, _Connection())
        self._connections.move_to_end(flight.port)
        if alone:
            self._under_way -= len(connection.under_way)
            connection.under_way.clear()
        connection.under_way[flight.seq] = connection.last = flight
        self._under_way += 1
        self._told[flight.seq] = flight
        if len(self._told) > _MAX_UNTOLD:
            self._told.popitem(last=False)
        if len(self._connections) > _MAX_CONNECTIONS:
            self._forget_oldest()

    def end(self, seq: int) -> None:
        """Note that it has ended; fine when it is not known."""
        flight = self._told.pop(seq, None)
        connection = None if flight is None else self._connections.get(flight.port)
        if connection is not None and connection.under_way.pop(seq, None) is not None:
            self._under_way -= 1

    def ports_where(self, refused: Callable[[Flight], bool]) -> list[int]:
        """Return the ports of connections that carry, or carried last, what is refused."""
        return [
            port
            for port, connection in self._connections.items()
            if any(
                refused(flight)
                for flight in itertools.chain(connection.under_way.values(), filter(None, [connection.last]))
            )
        ]

    def forget(self, port: int) -> None:
        """Note that a connection is gone."""
        connection = self._connections.pop(port, None)
        if connection is not None:
            self._under_way -= len(connection.under_way)

    def clear(self) -> None:
        """Note that all connections are gone, or that nothing is known of them any more."""
        self._connections.clear()
        self._told.clear()
        self._under_way = 0

    def _forget_oldest(self) -> None:
        """Forget the connection that has been silent longest, of those that carry nothing if there are any."""
        idle = next((port for port, found in self._connections.items() if not found.under_way), None)
        self.forget(next(iter(self._connections)) if idle is None else idle)
