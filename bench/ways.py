"""Ways from clients to a server: through SPACE's way out, through a proxy of others, or straight.

Clients are network namespaces. Behind SPACE each is plugged into a slot of its own, by a link where a VM has its tap,
so that its packets pass the slot's rules; before the others they share one namespace, and a namespace in between
forwards or, where a proxy intercepts, redirects.
"""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator
from pathlib import Path

from bench import far, rivals
from bench.far import Far
from tests.support import internet_ns, node_world
from tests.support.egress_world import gateway_settings, make_authority, make_ca

from space.host import command, netns
from space.layout import Layout
from space.model.ids import SandboxId, new_id
from space.net import nft, slot
from space.net.openings import Openings
from space.net.slot import Slot
from space.wire.gateway import EgressOrder, GatewayClient, SlotEntry
from space.worker.gateway_link import GatewayLink

_LOOKUP = (
    "import sys, json; sys.dont_write_bytecode = True; sys.path.insert(0, {folder!r})\n"
    "from guest_client import *; show(address_of({name!r}))"
)
_POLICY: dict[str, object] = {"allow": [{"host": far.NAME, "methods": ["GET"], "paths": ["/public/**"]}]}


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    """A namespace, and the address at which the server is dialled from there."""

    place: Path
    address: str


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """`ca` is the file that verifies what the clients are shown; `pids` are of the processes in between."""

    name: str
    clients: tuple[Client, ...]
    ca: Path
    pids: tuple[int, ...] = ()


@contextlib.asynccontextmanager
async def through_space(outside: Far, clients: int) -> AsyncGenerator[Way]:
    """SPACE's gateway, egress proxy and redactor, with so many sandboxes."""
    async with contextlib.AsyncExitStack() as stack:
        layout = stack.enter_context(node_world.instance())
        root = make_ca("SPACE of this bench")
        ca = layout.data_dir / "root.pem"
        ca.write_text(root.pem)
        reach = ([internet_ns.RESOLVER], [internet_ns.NETWORK])
        made = await stack.enter_async_context(node_world.slots(layout, clients, outside.beyond.host, *reach))
        places = [await stack.enter_async_context(_plugged(layout, each)) for each in made]
        decides = await stack.enter_async_context(node_world.gateway(layout, **gateway_settings(outside.roots)))
        await stack.enter_async_context(node_world.redactor(layout))
        carries = await stack.enter_async_context(node_world.egress_proxy(layout, outside.roots))
        gateway = GatewayClient(layout.gateway_control_sock)
        stack.push_async_callback(gateway.close)
        link = GatewayLink(layout, gateway, Openings(netns.path(layout.gateway_netns)), {})
        async with asyncio.TaskGroup() as group:
            running = group.create_task(link.run(lambda _sandbox, _address, _name: None, lambda _rotation: None))
            await link.put_authority(make_authority(root))
            for each in made:
                sandbox = SandboxId(new_id())
                await link.admit(sandbox, SlotEntry.model_validate({"address": each.address}))
                await link.put_egress(sandbox, EgressOrder(policy=_POLICY, generation=1))
            found = tuple([await _client(place) for place in places])
            yield Way("SPACE", found, ca, (decides.ref.pid, carries.ref.pid))
            running.cancel()


@contextlib.asynccontextmanager
async def _plugged(layout: Layout, made: Slot) -> AsyncGenerator[Path]:
    """A client's namespace, joined to a slot by a link with the tap's name and address."""
    name = f"{layout.netns_prefix}client{made.number}"
    await command.run("ip", "netns", "add", name)
    try:
        await _ip(
            made.netns,
            "link delete tap0",
            f"link add tap0 address {slot.TAP_MAC} type veth peer name eth0 netns {name}",
        )
        # a chain at a device ends with it
        await nft.load(netns.path(made.netns), "flush ruleset\n" + nft.slot_ruleset(made.gateway_address, made.address))
        await _ip(made.netns, f"address add {nft.TAP}/30 dev tap0", "link set tap0 up")
        await _ip(
            name,
            "link set lo up",
            f"address add {nft.GUEST}/30 dev eth0",
            "link set eth0 up",
            f"route add default via {nft.TAP}",
        )
        yield netns.path(name)
    finally:
        await netns.delete(name)


async def _client(place: Path) -> Client:
    script = _LOOKUP.format(folder=str(Path(node_world.__file__).parent), name=far.NAME)
    done = await command.run("/usr/bin/python3", "-c", script, netns=place)
    return Client(place, json.loads(done.stdout))


async def _ip(namespace: str, *lines: str) -> None:
    await command.run("ip", "-n", namespace, "-batch", "-", stdin="\n".join(lines).encode())


@contextlib.asynccontextmanager
async def between(outside: Far, clients: int) -> AsyncGenerator["Between"]:
    """A client and, between it and the server's host, a namespace that forwards."""
    tag = outside.beyond.host.removesuffix("-host")
    client, middle = f"{tag}-client", f"{tag}-middle"
    try:
        for name in (client, middle):
            await command.run("ip", "netns", "add", name)
        netns.write_sysctls(netns.path(middle), {"net.ipv4.ip_forward": 1})
        await _ip(
            middle,
            "link set lo up",
            f"link add in0 type veth peer name eth0 netns {client}",
            f"link add out0 type veth peer name mid0 netns {outside.beyond.host}",
            "address add 172.30.0.1/24 dev in0",
            "address add 172.30.1.2/24 dev out0",
            "link set in0 up",
            "link set out0 up",
            "route add default via 172.30.1.1",
        )
        await _ip(
            client,
            "link set lo up",
            "address add 172.30.0.2/24 dev eth0",
            "link set eth0 up",
            "route add default via 172.30.0.1",
        )
        await _ip(
            outside.beyond.host,
            "address add 172.30.1.1/24 dev mid0",
            "link set mid0 up",
            "route add 172.30.0.0/24 via 172.30.1.2",
        )
        netns.write_sysctls(outside.beyond.host_path, {"net.ipv4.ip_forward": 1})
        await _ip(outside.beyond.internet, f"route add 172.30.0.0/16 via {internet_ns.HOST_PUBLIC}")
        yield Between(outside, netns.path(middle), netns.path(client), clients)
    finally:
        for name in (client, middle):
            await netns.delete(name)


@dataclasses.dataclass(frozen=True, slots=True)
class Between:
    """That place: `middle` stands between `place`, where so many clients run, and the server."""

    outside: Far
    middle: Path
    place: Path
    clients: int

    def straight(self) -> Way:
        """Return the way on which nothing is in between."""
        return Way("direct", self._clients(far.ADDRESS), self.outside.roots)

    def _clients(self, address: str) -> tuple[Client, ...]:
        return (Client(self.place, address),) * self.clients

    @contextlib.asynccontextmanager
    async def through(self, rival: rivals.Rival) -> AsyncGenerator[Way]:
        """A way through somebody else's proxy."""
        async with rivals.running(rival, self.outside, self.middle) as (port, ca, pid):
            rules = (
                "table ip bench {\n chain redirects {\n  type nat hook prerouting priority dstnat;\n"
                f'  iifname "in0" ip daddr {far.INTERCEPTED} tcp dport 443 redirect to :{port}\n }}\n}}\n'
            )
            await nft.load(self.middle, rules)
            try:
                yield Way(rival, self._clients(far.INTERCEPTED), ca, (pid,))
            finally:
                await nft.load(self.middle, "delete table ip bench\n")
