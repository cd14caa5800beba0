"""Names to addresses, for the gateway's own dialling: asked only after a request was judged, and screened.

Only A is asked for: the way out is IPv4. Every address of an answer is screened, and one that passed is dialled as a
literal, so that a name which changes its mind between two lookups gains nothing. Name servers that a policy names are
asked over TCP (RFC 7766): the packet rules let this process open such connections, and nobody else can answer.
"""

import asyncio
import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver

from space.model.errors import SpaceError, Unavailable
from space.telemetry import logger

_LOOKUP_S = 3.0
_TTL_MIN_S, _TTL_MAX_S = 1.0, 60.0
"""A server that says 0 is asked once a second at most; one that says a day is asked again after a minute."""
_CACHE = 4096
_MAX_LOOKUPS = 256
"""Lookups under way for all guests."""
_MAX_OWN_LOOKUPS = 32
"""Those at a policy's name servers: nobody knows how slow they are, and others must not wait for them."""
_AVOID_S = 10.0
"""How long an address that could not be connected to is the last choice."""


log = logger()


class NotResolved(SpaceError):
    """The name has no address that may be dialled."""

    code, status, title = "not_resolved", 502, "Name not resolved"


@dataclasses.dataclass(slots=True)
class _Known:
    """`addresses` None: nobody answered."""

    addresses: tuple[IPv4Address, ...] | None
    until_s: float


_Key = tuple[str, tuple[IPv4Address, ...]]
"""A name, and who is asked for it; nobody in particular: the host's name servers."""


class Resolver:
    """Asks the host's name servers or a policy's, and remembers for as long as they say, within limits."""

    def __init__(self, servers: Sequence[IPv4Address], refused: Sequence[IPv4Network]) -> None:
        """`refused`: ranges that are dialled only where a policy names them (model/ranges.py)."""
        self._asks = _asking(servers)
        self._refused = tuple(refused)
        self._cache: OrderedDict[_Key, _Known] = OrderedDict()
        self._under_way: dict[_Key, asyncio.Future[None]] = {}
        self._avoid: dict[IPv4Address, float] = {}

    async def pick(
        self,
        name: str,
        allowed: Callable[[IPv4Address], bool],
        declared: IPv4Network | None,
        spread: int,
        servers: tuple[IPv4Address, ...] = (),
    ) -> IPv4Address:
        """Return the address to dial for a canonical name.

        `allowed` is what the policy says of an address, `declared` the network in which its rule expects the name, the
        only way into a refused range. `spread` chooses among several; the same number chooses the same. `servers` are
        asked in place of the host's name servers. Raises NotResolved where nothing is left, and Unavailable where no
        name server answers.
        """
        found = await self._addresses((name, servers))
        passed = [address for address in found if self.passes(address, declared) and allowed(address)]
        if not passed:
            raise NotResolved(
                f"{name} has no address." if not found else f"{name} resolves to addresses that may not be reached."
            )
        now_s = time.monotonic()
        fresh = [address for address in passed if self._avoid.get(address, 0) <= now_s] or passed
        return fresh[spread % len(fresh)]

    def passes(self, address: IPv4Address, declared: IPv4Network | None) -> bool:
        """Tell whether an address may be dialled at all."""
        if declared is not None and address in declared:
            return True
        return not any(address in network for network in self._refused)

    def note_failure(self, address: IPv4Address) -> None:
        """Choose others before this address for some seconds: nobody answered there."""
        now_s = time.monotonic()
        self._avoid = {one: until_s for one, until_s in self._avoid.items() if until_s > now_s}
        if len(self._avoid) < _CACHE:
            self._avoid[address] = now_s + _AVOID_S

    async def _addresses(self, key: _Key) -> tuple[IPv4Address, ...]:
        known = self._fresh(key) or await self._looked_up(key)
        if known.addresses is None:
            raise Unavailable(f"No name server answers for {key[0]}. Try again.")
        return known.addresses

    def _fresh(self, key: _Key) -> _Known | None:
        known = self._cache.get(key)
        if known is None or known.until_s <= time.monotonic():
            return None
        self._cache.move_to_end(key)
        return known

    async def _looked_up(self, key: _Key) -> _Known:
        while key in self._under_way:  # one question for all who ask at once, and one answer, be it none
            await asyncio.wait([self._under_way[key]])
            known = self._fresh(key)
            if known is not None:
                return known
        same = sum(1 for _, servers in self._under_way if servers == key[1])
        if len(self._under_way) >= _MAX_LOOKUPS or (key[1] and same >= _MAX_OWN_LOOKUPS):
            raise Unavailable("Too many names are being resolved just now. Try again.")
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[key] = mine
        try:
            known = await self._ask(*key)
        finally:
            del self._under_way[key]
            mine.set_result(None)
        self._cache[key] = known
        if len(self._cache) > _CACHE:
            self._cache.popitem(last=False)
        return known

    async def _ask(self, name: str, servers: tuple[IPv4Address, ...]) -> _Known:
        now_s = time.monotonic()
        asks = _asking(servers) if servers else self._asks
        try:
            answer = await asks.resolve(name + ".", dns.rdatatype.A, search=False, tcp=bool(servers))
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return _Known((), now_s + _TTL_MIN_S)
        except (dns.exception.DNSException, OSError) as error:
            log.warning("lookup_failed", name=name, error=str(error))
            return _Known(None, time.monotonic() + _TTL_MIN_S)
        addresses = tuple(IPv4Address(record.address) for record in answer)
        ttl_s = answer.rrset.ttl if answer.rrset is not None else 0
        return _Known(addresses, now_s + min(max(ttl_s, _TTL_MIN_S), _TTL_MAX_S))


def _asking(servers: Sequence[IPv4Address]) -> dns.asyncresolver.Resolver:
    asks = dns.asyncresolver.Resolver(configure=False)
    asks.nameservers = [str(server) for server in servers]
    asks.lifetime = _LOOKUP_S
    asks.timeout = 1.0
    return asks
