"""What of a guest is under way, as told by decisions and the access log, in whatever order and with losses."""

import time
from ipaddress import IPv4Address

from space.gateway.flights import _MAX_CONNECTIONS, Flight, Flights
from space.model.policy import Request


def _flight(seq: int, port: int, host: str = "a.test") -> Flight:
    return Flight(seq, port, Request("https", host, 443), IPv4Address("203.0.113.20"), 0, time.monotonic())


def _of(host: str, flights: Flights) -> list[int]:
    return sorted(flights.ports_where(lambda flight: flight.request.host == host))


def test_a_connection_carries_what_began_and_did_not_end() -> None:
    flights = Flights()
    flights.begin(_flight(1, 100, "a.test"), alone=False)
    flights.begin(_flight(2, 100, "b.test"), alone=False)
    flights.begin(_flight(3, 200, "b.test"), alone=False)
    assert (_of("a.test", flights), _of("b.test", flights)) == ([100], [100, 200])
    flights.end(1)
    assert _of("a.test", flights) == []
    flights.end(3)
    assert _of("b.test", flights) == [100, 200]  # the last request of a connection counts after its end, too
    assert len(flights) == 1
    flights.end(99)
    flights.forget(100)
    flights.forget(100)
    assert len(flights) == 0


def test_one_at_a_time_ends_what_was_before_it() -> None:
    """A lost line of the access log must not fill up a sandbox's requests in flight."""
    flights = Flights()
    for seq in range(1, 50):
        flights.begin(_flight(seq, 100), alone=True)
    assert len(flights) == 1
    assert flights.get(48) is not None  # what the log says of it may still come
    flights.end(48)
    assert (len(flights), flights.get(48)) == (1, None)
    flights.end(49)
    assert len(flights) == 0
    for seq in range(50, 10_000):
        flights.begin(_flight(seq, 100), alone=True)
    assert len(flights) == 1
    assert flights.get(50) is None


def test_connections_are_bounded_and_the_idle_go_first() -> None:
    flights = Flights()
    flights.begin(_flight(1, 1), alone=True)
    for seq in range(2, _MAX_CONNECTIONS + 50):
        flights.begin(_flight(seq, seq), alone=True)
        flights.end(seq)
    assert flights.get(1) is not None
    assert len(_of("a.test", flights)) == _MAX_CONNECTIONS
