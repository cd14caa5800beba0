"""Decisions whose ground moves while a name is looked up: the policy, the secrets, the sandbox itself."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import cast

import pytest

from space.gateway.audit import Audit
from space.gateway.egress import Egress, Let, TooManyRequests
from space.gateway.flights import MAX_IN_FLIGHT
from space.gateway.guests import Guests
from space.gateway.identity import Asked, EgressDenied
from space.gateway.inject import Injector
from space.gateway.oauth import Tokens
from space.gateway.redaction import Redactions
from space.gateway.resolve import Resolver
from space.gateway.settling import settle
from space.gateway.socks import Dialer
from space.gateway.tunnels import Tunnels
from space.model import ranges
from space.model.errors import SpaceError, Stale
from space.model.ids import SandboxId, new_id
from space.wire import gateway as wire

SANDBOX = SandboxId(new_id())
BOUND = {"allow": [{"host": "a.test", "headers": {"x-api-key": "${secrets.KEY}"}}]}
PLAIN = {"allow": [{"host": "a.test"}]}


class SlowNames(Resolver):
    """Looks a name up only after something else has happened."""

    def __init__(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__([], [])
        self._meanwhile = meanwhile

    async def pick(
        self,
        name: str,
        allowed: Callable[[IPv4Address], bool],
        declared: IPv4Network | None,
        spread: int,
        servers: tuple[IPv4Address, ...] = (),
    ) -> IPv4Address:
        await self._meanwhile()
        return IPv4Address("203.0.113.20")


def _entry(policy: Mapping[str, object], generation: int, key: str = "first") -> wire.SlotEntry:
    return wire.SlotEntry.model_validate(
        {
            "address": "100.64.0.3",
            "egress": {"policy": dict(policy), "generation": generation},
            "secrets": {
                "generation": generation,
                "values": {"KEY": {"id": "k", "version": 1, "given_version": 1, "value": key}},
            },
            "names": {"198.18.0.7": "a.test"},
        }
    )


def _asked(port: int = 40000, *, alone: bool = True) -> Asked:
    return Asked("100.64.0.3", port, "198.18.0.7", 443, "tls", "a.test", "a.test", "GET", "/", None, alone)


class World:
    """A gateway with one guest, in which `meanwhile` happens once, during the first lookup."""

    def __init__(self, policy: Mapping[str, object], meanwhile: Callable[["World"], None]) -> None:
        self.guests, self.audit, self.meanwhile = Guests(), Audit(), meanwhile
        self.happened = False
        resolver = SlowNames(self._once)
        tokens = cast("Tokens", None)  # no binding here asks for one
        tunnels = Tunnels(self.guests, Dialer(resolver, ssl.create_default_context()), self.audit)
        self.egress = Egress(self.guests, resolver, Injector(tokens), Redactions(), tunnels, self.audit)
        self.guests.put(SANDBOX, _entry(policy, 1))

    async def _once(self) -> None:
        await asyncio.sleep(0)
        if not self.happened:
            self.happened = True
            self.meanwhile(self)

    async def decide(self) -> Let:
        return await self.egress.decide(_asked(), {})


def _nothing(_world: World) -> None:
    pass


async def test_a_policy_that_comes_meanwhile_counts() -> None:
    """EGRESS H7: a decision under way is one more thing that the new policy is asked about."""
    world = World(PLAIN, lambda made: made.guests.of(SANDBOX).update(_entry({}, 2).egress, None))
    with pytest.raises(EgressDenied):
        await world.decide()
    again = World(PLAIN, lambda made: _put(made, {}))
    with pytest.raises(EgressDenied):
        await again.decide()


def _put(world: World, policy: Mapping[str, object]) -> None:
    world.guests.put(SANDBOX, _entry(policy, 2))


async def test_a_binding_or_secret_that_is_gone_meanwhile_is_not_sent() -> None:
    """Case C-18: after the answer to a change, no former value goes out."""
    let = await World(BOUND, lambda made: _put(made, PLAIN)).decide()
    assert let.injection.headers == {}
    rotated = await World(
        BOUND, lambda made: made.guests.of(SANDBOX).update(None, _entry({}, 2, "second").secrets)
    ).decide()
    assert rotated.injection.headers == {"x-api-key": "second"}
    assert rotated.redact is not None


async def test_a_sandbox_that_ends_meanwhile_sends_nothing() -> None:
    """Case P-05: neither by itself nor as the one that has its address next."""
    with pytest.raises(EgressDenied):
        await World(PLAIN, lambda made: made.guests.remove(SANDBOX)).decide()

    def replaced(made: World) -> None:
        made.guests.remove(SANDBOX)
        made.guests.put(SandboxId(new_id()), _entry(PLAIN, 1))

    with pytest.raises(EgressDenied):
        await World(PLAIN, replaced).decide()


async def test_what_was_let_through_is_what_a_new_policy_ends() -> None:
    world = World(PLAIN, _nothing)
    await world.decide()
    guest = world.guests.of(SANDBOX)
    assert settle(guest).end == []
    guest.update(_entry({}, 2).egress, None)
    assert settle(guest).end == [40000]


async def test_many_at_once_do_not_slip_under_the_limit() -> None:
    """H1: also when all of them wait for the same lookup."""
    world = World(PLAIN, _nothing)
    refused = 0

    async def one(port: int) -> None:
        nonlocal refused
        try:
            await world.egress.decide(_asked(port), {})
        except TooManyRequests:
            refused += 1

    async with asyncio.TaskGroup() as group:
        for number in range(MAX_IN_FLIGHT + 100):
            group.create_task(one(10_000 + number))
    assert (len(world.guests.of(SANDBOX).flights), refused) == (MAX_IN_FLIGHT, 100)


async def test_an_overtaken_order_changes_nothing() -> None:
    world = World(PLAIN, _nothing)
    world.guests.put(SANDBOX, _entry(PLAIN, 5, "fifth"))
    guest = world.guests.of(SANDBOX)
    for stale in (
        _entry({}, 4, "fourth"),
        _entry({}, 6, "sixth").model_copy(update={"secrets": _entry({}, 4).secrets}),
    ):
        with pytest.raises(Stale):
            world.guests.put(SANDBOX, stale)
        assert (guest.generation, guest.secrets) == (5, {"KEY": "fifth"})
    with pytest.raises(SpaceError):
        guest.update(wire.EgressOrder(policy={"allow": [{"host": "??"}]}, generation=7), None)
    assert (await world.decide()).dial == "203.0.113.20:443"


PROXIED = PLAIN | {"upstream_proxy": {"address": "203.0.113.30:1080"}}


async def test_where_a_proxy_is_set_no_address_of_a_server_is_ever_dialled() -> None:
    world = World(PROXIED, _nothing)
    first, again = await world.decide(), await world.decide()
    assert first.dial == again.dial, "a connection of the proxy's can be used again"
    assert IPv4Address(first.dial.partition(":")[0]) in ranges.TUNNELS
    meanwhile = World(PLAIN, lambda made: _put(made, PROXIED))
    assert IPv4Address((await meanwhile.decide()).dial.partition(":")[0]) in ranges.TUNNELS
    other = PLAIN | {"upstream_proxy": {"address": "203.0.113.31:1080"}}
    settled = world.guests.put(SANDBOX, _entry(other, 2))
    world.egress._tunnels.recheck(settled)
    assert settle(settled).end == [40000], "what went the other way ends"
    assert (await world.decide()).dial != first.dial


async def test_another_life_of_a_sandbox_has_ways_of_its_own() -> None:
    world = World(PROXIED, _nothing)
    first = await world.decide()
    world.guests.remove(SANDBOX)
    world.guests.put(SANDBOX, _entry(PROXIED, 2))
    again, then = await world.decide(), await world.decide()
    assert first.dial != again.dial == then.dial


async def test_a_ceiling_bounds_the_proxy_too() -> None:
    ceiling = {"allow": [{"host": "a.test"}]}
    with pytest.raises(EgressDenied, match="ceiling lets nothing go to the upstream proxy"):
        await World(PROXIED | {"ceiling": ceiling}, _nothing).decide()
    ceiling["allow"].append({"cidr": "203.0.113.30/32", "ports": "1080"})
    assert (await World(PROXIED | {"ceiling": ceiling}, _nothing).decide()).dial
