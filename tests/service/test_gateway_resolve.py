"""The gateway's own lookups, against a name server that says what a test wants."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from ipaddress import IPv4Address, IPv4Network

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from space.gateway import resolve
from space.gateway.resolve import NotResolved, Resolver
from space.model import ranges
from space.model.errors import Unavailable

PUBLIC = "93.184.216.34"


class _Server(asyncio.DatagramProtocol):
    """Answers from a table; a name that is not in it gets no answer at all."""

    def __init__(self) -> None:
        self.table: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.ttl_s = 30

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override] # of this kind
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        name = query.question[0].name.to_text(omit_final_dot=True)
        self.asked.append(name)
        if name not in self.table:
            return
        reply = dns.message.make_response(query)
        if self.table[name]:
            reply.answer.append(dns.rrset.from_text(query.question[0].name, self.ttl_s, "IN", "A", *self.table[name]))
        else:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(reply.to_wire(), addr)


@pytest.fixture
async def server() -> AsyncGenerator[tuple[_Server, Resolver]]:
    """A name server, and a resolver that asks it."""
    transport, made = await asyncio.get_running_loop().create_datagram_endpoint(_Server, local_addr=("127.0.0.1", 0))
    resolver = Resolver([IPv4Address("127.0.0.1")], ranges.refused())
    resolver._asks.port = transport.get_extra_info("sockname")[1]
    with contextlib.closing(transport):
        yield made, resolver


async def _pick(resolver: Resolver, name: str, declared: str | None = None, spread: int = 0) -> str:
    network = None if declared is None else IPv4Network(declared)
    return str(await resolver.pick(name, lambda _: True, network, spread))


async def test_an_answer_is_kept_for_its_time_and_asked_for_once(server: tuple[_Server, Resolver]) -> None:
    made, resolver = server
    made.table["a.test"] = [PUBLIC]
    async with asyncio.TaskGroup() as group:
        picks = [group.create_task(_pick(resolver, "a.test")) for _ in range(50)]
    assert {pick.result() for pick in picks} == {PUBLIC}
    assert await _pick(resolver, "a.test") == PUBLIC
    assert made.asked == ["a.test"]


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.5", "100.64.0.5", "127.0.0.1", "127.9.9.9", "168.63.129.16", "169.254.169.254",
        "169.254.170.2", "172.16.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.7",
        "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "100.100.100.200",
    ],
)  # fmt: skip
async def test_special_addresses_are_not_dialled(server: tuple[_Server, Resolver], address: str) -> None:
    """Cases D-11, D-12, A-05 to A-07; where a good one stands beside it, that one is taken."""
    made, resolver = server
    made.table |= {"bad.test": [address], "mixed.test": [address, PUBLIC]}
    with pytest.raises(NotResolved):
        await _pick(resolver, "bad.test")
    for spread in range(4):
        assert await _pick(resolver, "mixed.test", spread=spread) == PUBLIC


async def test_a_declared_network_is_the_way_to_a_private_address(server: tuple[_Server, Resolver]) -> None:
    made, resolver = server
    made.table["in.test"] = ["10.1.2.3"]
    assert await _pick(resolver, "in.test", declared="10.1.0.0/16") == "10.1.2.3"
    with pytest.raises(NotResolved):
        await _pick(resolver, "in.test", declared="10.2.0.0/16")


async def test_what_the_policy_refuses_is_not_dialled(server: tuple[_Server, Resolver]) -> None:
    made, resolver = server
    made.table["a.test"] = [PUBLIC, "93.184.216.35"]
    picked = await resolver.pick("a.test", lambda one: str(one) != PUBLIC, None, 0)
    assert str(picked) == "93.184.216.35"


async def test_an_address_where_nobody_answered_is_the_last_choice(server: tuple[_Server, Resolver]) -> None:
    made, resolver = server
    made.table["a.test"] = [PUBLIC, "93.184.216.35"]
    first = await _pick(resolver, "a.test")
    resolver.note_failure(IPv4Address(first))
    second = await _pick(resolver, "a.test")
    assert second != first
    resolver.note_failure(IPv4Address(second))
    assert await _pick(resolver, "a.test") in {first, second}


async def test_a_name_that_is_not_there(server: tuple[_Server, Resolver]) -> None:
    made, resolver = server
    made.table["no.test"] = []
    for _ in range(3):
        with pytest.raises(NotResolved):
            await _pick(resolver, "no.test")
    assert made.asked == ["no.test"]


async def test_a_server_that_is_silent_is_waited_for_once_for_all(server: tuple[_Server, Resolver]) -> None:
    """R-12: many requests of one guest for a dead name do not wait one after the other."""
    made, resolver = server
    resolver._asks.lifetime = 0.5
    refused = 0

    async def one() -> None:
        nonlocal refused
        try:
            await _pick(resolver, "silent.test")
        except Unavailable:
            refused += 1

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(one())
    assert refused == 100
    assert len(made.asked) < 10


async def test_slow_name_servers_of_a_policy_hold_up_nobody_else(
    server: tuple[_Server, Resolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sandbox's names are looked up while a policy's name servers take connections and say nothing."""
    made, resolver = server
    made.table["a.test"] = [PUBLIC]
    asked = asyncio.Semaphore(0)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.release()
        await reader.read()
        writer.close()

    asking = resolve._asking
    own = (IPv4Address("127.0.0.1"),)
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:

        def there(servers: Sequence[IPv4Address]) -> dns.asyncresolver.Resolver:
            found = asking(servers)
            found.port = listening.sockets[0].getsockname()[1]
            return found

        monkeypatch.setattr(resolve, "_asking", there)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(resolver.pick(f"n{n}.test", lambda _: True, None, 0, own))
                for n in range(resolve._MAX_OWN_LOOKUPS)
            ]
            for _ in tasks:
                await asked.acquire()
            with pytest.raises(Unavailable, match="Too many"):
                await resolver.pick("one-more.test", lambda _: True, None, 0, own)
            assert await _pick(resolver, "a.test") == PUBLIC
            for task in tasks:
                task.cancel()
