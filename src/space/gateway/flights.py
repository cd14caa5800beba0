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

MAX_IN_FLIGHT = 512
"""Requests of one sandbox at once. The proxy has no such limit of its own (512 connections of 100 streams each)."""
_MAX_CONNECTIONS = 1024
"""Connections remembered. A slot lets 512 be open at once; older ones than this are closed already."""


@dataclasses.dataclass(slots=True)
class Flight:
    """A request that was let through: to which address, by which rule (None: the default), and when (monotonic s).

    The bytes are those that the proxy has told of so far.
    """

    seq: int
    port: int
    request: Request
    address: IPv4Address
    rule: int | None
    began_s: float
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclasses.dataclass(slots=True)
class _Connection:
    under_way: dict[int, Flight] = dataclasses.field(default_factory=dict)
    last: Flight | None = None


class Flights:
    """All of one guest."""

    def __init__(self) -> None:
        self._connections: OrderedDict[int, _Connection] = OrderedDict()
        self._flights: dict[int, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, seq: int) -> Flight | None:
        """Return a flight that has not ended."""
        return self._flights.get(seq)

    def begin(self, flight: Flight, *, alone: bool) -> None:
        """Note that a request was let through. `alone`: its connection carries one at a time (HTTP/1), so that those
        before it have ended, told or not.
        """
        connection = self._connections.setdefault(flight.port, _Connection())
        self._connections.move_to_end(flight.port)
        if alone:
            for seq in list(connection.under_way):
                self.end(seq)
        connection.under_way[flight.seq] = connection.last = flight
        self._flights[flight.seq] = flight
        if len(self._connections) > _MAX_CONNECTIONS:
            self._forget_oldest()

    def end(self, seq: int) -> None:
        """Note that it has ended; fine when it is not known."""
        flight = self._flights.pop(seq, None)
        if flight is not None and flight.port in self._connections:
            self._connections[flight.port].under_way.pop(seq, None)

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
        for seq in connection.under_way if connection else ():
            self._flights.pop(seq, None)

    def clear(self) -> None:
        """Note that all connections are gone, or that nothing is known of them any more."""
        self._connections.clear()
        self._flights.clear()

    def _forget_oldest(self) -> None:
        """Forget the connection that has been silent longest, of those that carry nothing if there are any."""
        idle = next((port for port, found in self._connections.items() if not found.under_way), None)
        self.forget(next(iter(self._connections)) if idle is None else idle)
