"""Raw TCP to listed names and networks: with tunnels.py the ways on which bytes of a guest pass this process.

Envoy decides only after the client has sent something, and servers that speak first (SSH, SMTP, databases) wait for
ever behind it. So the worker redirects listed ports of listed addresses here. The address is all there is to judge by:
behind a synthetic one the name, else the address itself. Each connection is judged, dialled and copied, with half-open
ends kept; a new policy ends those that it refuses.
"""

import asyncio
import contextlib
import dataclasses
import socket
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from ipaddress import IPv4Address

from space.gateway.audit import Audit
from space.gateway.flights import Flight
from space.gateway.guests import Guest, Guests
from space.gateway.identity import EgressDenied
from space.gateway.resolve import Resolver
from space.gateway.settling import still_allowed
from space.gateway.socks import Dialer, UpstreamProxyFailed
from space.gateway.streams import Plain, Stream, carry
from space.model import ranges
from space.model.errors import SpaceError
from space.model.ids import SandboxId
from space.model.policy import Request, decide
from space.model.policy_bindings import UnresolvedSecret
from space.model.policy_reach import declared_network, may_dial, proxy_refusal
from space.telemetry import logger
from space.wire.gateway import EGRESS_RELAY_PORT

MAX_CONNECTIONS = 128
"""Open connections of one guest through here."""

_CONNECT_S = 5.0
_BACKLOG = 512
_SO_ORIGINAL_DST = 80
_ANY = "0.0.0.0"  # noqa: S104 - packet rules decide who reaches it

log = logger()


@dataclasses.dataclass(eq=False)
class _Connection:
    guest: Guest
    flight: Flight
    task: asyncio.Task[None]


class Relay:
    """The connections of all guests."""

    def __init__(self, guests: Guests, resolver: Resolver, dialer: Dialer, audit: Audit) -> None:
        self._guests, self._resolver, self._dialer, self._audit = guests, resolver, dialer, audit
        self._open: dict[SandboxId, set[_Connection]] = {}

    def recheck(self, guest: Guest) -> None:
        """End what the guest's policy does not allow any more."""
        for connection in self._open.get(guest.sandbox, ()):
            if not still_allowed(guest.policy, connection.flight):
                connection.task.cancel()

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks of all connections."""
        return [connection.task for mine in self._open.values() for connection in mine]

    def drop(self, sandbox: SandboxId) -> None:
        """End everything of a sandbox."""
        for connection in self._open.get(sandbox, ()):
            connection.task.cancel()

    async def serve(self, client: socket.socket, peer: tuple[str, int]) -> None:
        """Serve one connection until both ends are done; closes it."""
        with client:
            guest = self._guests.at(peer[0])
            if guest is None:
                return
            try:
                destination, port = _original_destination(client)
                request = _request(guest, destination, port)
            except (OSError, EgressDenied):
                return
            with contextlib.suppress(SpaceError, OSError):
                await self._judged(client, guest, request, peer[1])

    async def _judged(self, client: socket.socket, guest: Guest, request: Request, source_port: int) -> None:
        verdict = decide(guest.policy, request)
        try:
            if not verdict.allowed:
                raise EgressDenied(f"TCP to {request.host}:{request.port} is not allowed: {verdict.why}.")
            self._check_room(guest)
            guest.budgets.admit(guest.policy, verdict.rule)
            address = await self._address(guest, request, source_port)
            via = guest.policy.upstream_proxy
            flight = Flight(0, source_port, request, address, verdict.rule, time.monotonic(), via=via)
            if (refusal := proxy_refusal(guest.policy)) is not None:
                raise EgressDenied(f"TCP to {request.host}:{request.port} is not allowed: {refusal}.")
            if self._guests.at(guest.address) is not guest or not still_allowed(guest.policy, flight):
                raise EgressDenied("The policy was changed, or the sandbox ended, while the connection was judged.")
            self._check_room(guest)
        except SpaceError as error:
            self._note(guest, request, verdict.rule, str(error), allowed=False)
            raise
        flight.seq = self._note(guest, request, verdict.rule, verdict.why, allowed=True, address=address)
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(guest, flight, task)
        mine = self._open.setdefault(guest.sandbox, set())
        mine.add(connection)
        try:
            await self._carry(client, connection)
        except (UpstreamProxyFailed, UnresolvedSecret) as error:
            self._note(guest, request, verdict.rule, str(error), allowed=False, address=address)
            raise
        finally:
            mine.discard(connection)
            if not mine:
                self._open.pop(guest.sandbox, None)
            self._note_end(guest, flight)

    def _check_room(self, guest: Guest) -> None:
        if len(self._open.get(guest.sandbox, ())) >= MAX_CONNECTIONS:
            raise EgressDenied(f"This sandbox has {MAX_CONNECTIONS} TCP connections open.")

    async def _address(self, guest: Guest, request: Request, spread: int) -> IPv4Address:
        policy = guest.policy
        verdict = decide(policy, request)
        declared = declared_network(policy, verdict)
        if not request.host[-1].isdigit():
            return await self._resolver.pick(
                request.host,
                lambda one: may_dial(policy, verdict, one, "tcp", request.port),
                declared,
                spread,
                policy.dns_servers,
            )
        address = IPv4Address(request.host)
        if not self._resolver.passes(address, declared):
            raise EgressDenied(f"{address} may not be reached.")
        return address

    async def _carry(self, client: socket.socket, on: _Connection) -> None:
        def seen(sends: bool, count: int) -> None:
            on.guest.budgets.use(on.flight.rule, count if sends else 0, 0 if sends else count)
            if sends:
                on.flight.sent_bytes += count
            else:
                on.flight.received_bytes += count
            if on.guest.budgets.spent(on.guest.policy, on.flight.rule):
                raise EgressDenied("The bytes that the rule allows are used up.")

        async with self._dialled(on) as server:
            await carry(Plain(client), server, seen)

    @contextlib.asynccontextmanager
    async def _dialled(self, on: _Connection) -> AsyncGenerator[Stream]:
        """The connection to where a flight goes, by the way that its policy says."""
        flight = on.flight
        if flight.via is not None:
            servers, target = on.guest.policy.dns_servers, (flight.address, flight.request.port)
            async with self._dialer.dialled(flight.via, servers, on.guest.secrets, target) as stream:
                yield stream
            return
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as upstream:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().sock_connect(upstream, (str(flight.address), flight.request.port))
            yield Plain(upstream)

    def _note(
        self,
        guest: Guest,
        request: Request,
        rule: int | None,
        why: str,
        *,
        allowed: bool,
        address: IPv4Address | None = None,
    ) -> int:
        return self._audit.note(
            "verdict", guest.sandbox, generation=guest.generation, protocol="tcp", name=request.host,
            port=request.port, address=None if address is None else str(address), allowed=allowed, rule=rule, why=why,
            via=None if address is None or guest.policy.upstream_proxy is None else str(guest.policy.upstream_proxy),
        )  # fmt: skip

    def _note_end(self, guest: Guest, flight: Flight) -> None:
        self._audit.note(
            "traffic", guest.sandbox, generation=guest.generation, protocol="tcp", name=flight.request.host,
            port=flight.request.port, address=str(flight.address), of=flight.seq, sent_bytes=flight.sent_bytes,
            received_bytes=flight.received_bytes, ms=round((time.monotonic() - flight.began_s) * 1000, 1),
        )  # fmt: skip


def _original_destination(client: socket.socket) -> tuple[str, int]:
    """Return where the guest wanted to; OSError for a connection that was not redirected here."""
    raw = client.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
    port, address = struct.unpack_from("!2xH4s", raw)
    return socket.inet_ntoa(address), port


def _request(guest: Guest, destination: str, port: int) -> Request:
    """Return what is asked for; raises EgressDenied for a synthetic address that stands for nothing."""
    if IPv4Address(destination) in ranges.SYNTHETIC:
        name = guest.names.name_of(destination)
        if name is None:
            raise EgressDenied("This address stands for no name.")
        return Request("tcp", name, port)
    return Request("tcp", destination, port)


@contextlib.asynccontextmanager
async def serving(relay: Relay, port: int = EGRESS_RELAY_PORT) -> AsyncGenerator[None]:
    """Accept connections while the context lasts; those under way end with it."""
    async with accepting(port, relay.serve, relay.tasks):
        yield


@contextlib.asynccontextmanager
async def accepting(
    port: int,
    serve: Callable[[socket.socket, tuple[str, int]], Awaitable[None]],
    tasks: Callable[[], Sequence[asyncio.Task[None]]],
) -> AsyncGenerator[None]:
    """Have connections to a port served while the context lasts; `tasks` are those to end with it."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_ANY, port))
        listener.listen(_BACKLOG)

        async def one(client: socket.socket, peer: tuple[str, int]) -> None:
            try:
                await serve(client, peer)
            except* (SpaceError, OSError, TimeoutError):
                pass  # an end that broke, was refused or fell silent; the event of its end says how far it came

        async def accept(group: asyncio.TaskGroup) -> None:
            while True:
                client, peer = await loop.sock_accept(listener)
                client.setblocking(False)
                group.create_task(one(client, peer))

        async with asyncio.TaskGroup() as group:
            accepts = group.create_task(accept(group))
            try:
                yield
            finally:
                accepts.cancel()
                for task in list(tasks()):
                    task.cancel()
