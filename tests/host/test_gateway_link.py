"""The worker's side of the gateway: what happens to sandboxes when the gateway is away, or does not take a policy."""

import asyncio
import os
from collections.abc import AsyncGenerator

import pytest
from tests.support import egress_world
from tests.support.egress_world import World

from space.host import netns
from space.model.errors import Stale
from space.net.openings import Openings
from space.wire.gateway import EgressOrder, SecretsOrder, SlotEntry
from space.worker.gateway_link import GatewayLink

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")
PLAIN: dict[str, object] = {"allow": [{"host": "allowed.test", "protocols": ["http"]}]}


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    """Two guests, and everything real between them and an internet."""
    async with egress_world.world() as made:
        yield made


async def test_a_policy_that_is_refused_costs_only_its_own_sandbox(world: World) -> None:
    """One that was good for an older release: the others are reached and go by theirs."""
    entries = {
        world.one.sandbox: SlotEntry.model_validate(
            {"address": world.one.slot.address, "egress": {"policy": {"allow": [{"unheard": "of"}]}, "generation": 90}}
        ),
        world.two.sandbox: SlotEntry.model_validate(
            {"address": world.two.slot.address, "egress": {"policy": PLAIN, "generation": 90}}
        ),
    }
    openings = Openings(netns.path(world.layout.gateway_netns))
    link = GatewayLink(world.layout, world.client, openings, entries)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(link.run(lambda *_: None, lambda _: None))
        async with asyncio.timeout(30):
            while (await world.fetch(world.two, "allowed.test", port=80, tls=False)).get("status") != 200:
                await asyncio.sleep(0.1)
        assert await world.run(world.one, "show(lookup('allowed.test'))") == [5, []]
        running.cancel()


async def test_a_policy_set_while_the_gateway_is_away_ends_all_that_flows(world: World) -> None:
    """Nobody knows what a live connection carries, so none is left; new ones wait for a gateway, which is told."""
    await world.allow(world.one, PLAIN)
    lines = (
        "s = connect('allowed.test', 80, tls=False)\n"
        "s.sendall(b'GET /slow HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n'); s.recv(99); show('flows')\n"
        "s.settimeout(20)\n"
        "try:\n while s.recv(65536): pass\n show('ended')\n"
        "except ConnectionResetError: show('ended')\nexcept OSError as e: show(type(e).__name__)"
    )
    async with world.running(world.one, lines) as output, asyncio.timeout(40):
        assert await output.readline() == b'"flows"\n'
        await world.gateway.stop(3)
        await world.allow(world.one, {"allow": []})
        assert await output.readline() == b'"ended"\n'


async def test_an_older_policy_or_secret_is_refused(world: World) -> None:
    await world.link.put_egress(world.one.sandbox, EgressOrder(policy=PLAIN, generation=7))
    await world.link.put_egress(world.one.sandbox, EgressOrder(policy=PLAIN, generation=7))
    with pytest.raises(Stale):
        await world.link.put_egress(world.one.sandbox, EgressOrder(policy={"allow": []}, generation=6))
    await world.link.put_secrets(world.one.sandbox, SecretsOrder(generation=3, values={}))
    with pytest.raises(Stale):
        await world.link.put_secrets(world.one.sandbox, SecretsOrder(generation=2, values={}))
    assert world.link.secrets_generation(world.one.sandbox) == 3
    assert (await world.fetch(world.one, "allowed.test", port=80, tls=False))["status"] == 200
