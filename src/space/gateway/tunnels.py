"""The egress proxy's connections that go on through a policy's upstream proxy: Envoy itself does not speak SOCKS.

For a request that may leave, Egress gives Envoy in place of the server's address one of loopback (ranges.TUNNELS),
which means: this guest, this address and port, through this proxy. Envoy dials it and is none the wiser: it verifies
the server's certificate, pools and ends connections as without. Only its user may dial there, and what an address means
is decided here, so nothing that Envoy says is believed. One whose policy has changed meanwhile leads nowhere.
"""

import asyncio
import contextlib
import dataclasses
import secrets
import socket
from collections import OrderedDict
from collections.abc import AsyncGenerator
from ipaddress import IPv4Address

from space.gateway.audit import Audit
from space.gateway.flights import Flight
from space.gateway.guests import Guest, Guests
from space.gateway.relay import accepting
from space.gateway.socks import Dialer
from space.gateway.streams import Plain, carry
from space.model import ranges
from space.model.errors import SpaceError
from space.model.ids import SandboxId
from space.model.policy import Request
from space.model.policy_upstream import UpstreamProxy
from space.wire.gateway import EGRESS_TUNNEL_PORT

MAX_CONNECTIONS = 512
"""Open connections of one guest through here: as many as it may have itself."""
MAX_ENDS = 1024
"""Places that one guest's requests can be on their way to; the one unused longest is forgotten for a new one."""

_FIRST = int(ranges.TUNNELS.network_address) + 1
_COUNT = ranges.TUNNELS.num_addresses - 2


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """What a loopback address stands for."""

    proxy: UpstreamProxy
    protocol: str
    host: str
    port: int
    address: IPv4Address


class Tunnels:
    """The places of all guests, and the connections to them."""

    def __init__(self, guests: Guests, dialer: Dialer, audit: Audit) -> None:
        self._guests, self._dialer, self._audit = guests, dialer, audit
        self._ends: dict[SandboxId, OrderedDict[_End, str]] = {}
        self._meant: dict[str, tuple[Guest, _End]] = {}
        self._open: dict[SandboxId, set[asyncio.Task[None]]] = {}
        self._next = secrets.randbelow(_COUNT)

    def way(self, guest: Guest, proxy: UpstreamProxy, flight: Flight) -> str:
        """Return what the egress proxy dials (`address:port`) to get where a flight goes, through `proxy`."""
        request: Request = flight.request
        end = _End(proxy, request.protocol, request.host, request.port, flight.address)
        ends = self._ends.setdefault(guest.sandbox, OrderedDict())
        if end in ends and self._meant[ends[end]][0] is not guest:  # of another life of this sandbox
            del self._meant[ends.pop(end)]
        if end not in ends:
            ends[end] = self._new()
            self._meant[ends[end]] = guest, end
        ends.move_to_end(end)
        if len(ends) > MAX_ENDS:
            del self._meant[ends.popitem(last=False)[1]]
        return f"{ends[end]}:{EGRESS_TUNNEL_PORT}"

    def _new(self) -> str:
        """Return an address that means nothing yet. They come round after four millions."""
        while True:
            address = str(IPv4Address(_FIRST + self._next))
            self._next = (self._next + 1) % _COUNT
            if address not in self._meant:
                return address

    def recheck(self, guest: Guest) -> None:
        """End and forget what goes another way than the guest's policy says."""
        ends = self._ends.get(guest.sandbox)
        if ends and any(end.proxy != guest.policy.upstream_proxy for end in ends):
            self.drop(guest.sandbox)

    def drop(self, sandbox: SandboxId) -> None:
        """End and forget everything of a sandbox."""
        for address in self._ends.pop(sandbox, {}).values():
            del self._meant[address]
        for task in self._open.get(sandbox, ()):
            task.cancel()

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks of all connections."""
        return [task for mine in self._open.values() for task in mine]

    async def serve(self, client: socket.socket, _peer: tuple[str, int]) -> None:
        """Serve one connection until both ends are done; closes it."""
        with client:
            guest, end = self._meant.get(client.getsockname()[0], (None, None))
            if guest is None or end is None or self._guests.at(guest.address) is not guest:
                return
            mine = self._open.setdefault(guest.sandbox, set())
            task = asyncio.current_task()
            assert task is not None
            if len(mine) >= MAX_CONNECTIONS:
                self._note(guest, end, f"this sandbox has {MAX_CONNECTIONS} connections through it open")
                return
            mine.add(task)
            try:
                await self._through(client, guest, end)
            finally:
                mine.discard(task)
                if not mine:
                    self._open.pop(guest.sandbox, None)

    async def _through(self, client: socket.socket, guest: Guest, end: _End) -> None:
        try:
            policy, target = guest.policy, (end.address, end.port)
            async with self._dialer.dialled(end.proxy, policy.dns_servers, guest.secrets, target) as server:
                await carry(Plain(client), server, lambda _sends, _count: None)  # the egress proxy counts
        except SpaceError as error:
            self._note(guest, end, str(error))

    def _note(self, guest: Guest, end: _End, why: str) -> None:
        self._audit.note(
            "verdict", guest.sandbox, generation=guest.generation, protocol=end.protocol, name=end.host, port=end.port,
            address=str(end.address), via=str(end.proxy), allowed=False, why=why,
        )  # fmt: skip


@contextlib.asynccontextmanager
async def serving(tunnels: Tunnels, port: int = EGRESS_TUNNEL_PORT) -> AsyncGenerator[None]:
    """Accept connections while the context lasts; those under way end with it."""
    async with accepting(port, tunnels.serve, tunnels.tasks):
        yield
