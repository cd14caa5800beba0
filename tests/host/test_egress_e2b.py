"""E2B's network configurations on the way out, whole: what they mean there, this is."""

import os
from collections.abc import AsyncGenerator, Mapping

import pytest
from tests.support import egress_world
from tests.support.egress_world import CANARY, FAR, World

from space.e2b.models import Network
from space.e2b.network import ALL_TRAFFIC, egress_policy

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")

SPEAK = """
def speak(address, port):
    try:
        s = socket.create_connection((address, port), 5)
        f = s.makefile("rb")
        first = f.readline()
        s.sendall(b"hello\\n")
        s.shutdown(socket.SHUT_WR)
        return first.decode() + f.readline().decode()
    except OSError as error:
        return type(error).__name__
"""
SPOKEN = "220 ready\nhello\n"


@pytest.fixture(scope="module")
async def world() -> AsyncGenerator[World]:
    """All of it, once."""
    async with egress_world.world() as made:
        yield made


def network(**given: object) -> Mapping[str, object]:
    """Return the policy of a network configuration."""
    return egress_policy(Network.model_validate(given), None)


async def test_without_a_word_the_public_internet_is_reached_by_name_and_by_address(world: World) -> None:
    await world.allow(world.one, egress_policy(None, None))
    answers = await world.run(
        world.one,
        SPEAK + "show([fetch('allowed.test')['status'], fetch('evil.test', port=80, tls=False)['status'],\n"
        "speak(address_of('allowed.test'), 2222), speak('203.0.113.66', 2222),\n"
        "*(speak(a, 2222) for a in ('10.66.0.1', '192.168.1.1', '169.254.169.254', '100.64.0.1', '127.0.0.2'))])",
    )
    assert answers[:4] == [200, 200, SPOKEN, SPOKEN]
    assert SPOKEN not in answers[4:]
    refused = await world.events(type="verdict", protocol="tcp", name="10.66.0.1")
    assert not refused.allowed


async def test_an_address_that_is_denied_is_reached_by_no_way(world: World) -> None:
    await world.allow(world.one, network(denyOut=["203.0.113.66", f"{FAR}/32"]))
    answers = await world.run(
        world.one,
        SPEAK + "show([speak('203.0.113.66', 2222), speak(address_of('allowed.test'), 2222),\n"
        "fetch('allowed.test').get('status')])",
    )
    assert SPOKEN not in answers
    assert answers[-1] != 200, "its name leads there"


async def test_only_what_is_allowed_is_reached(world: World) -> None:
    await world.allow(world.one, network(denyOut=[ALL_TRAFFIC], allowOut=["203.0.113.66", "allowed.test"]))
    answers = await world.run(
        world.one,
        SPEAK + "show([fetch('allowed.test')['status'], speak('203.0.113.66', 2222), speak('203.0.113.20', 2222),\n"
        "lookup('evil.test')[0]])",
    )
    assert answers[:2] == [200, SPOKEN]
    assert answers[2] != SPOKEN
    assert answers[3] != 0, "nobody gets to know whether there is such a name"


async def test_headers_are_put_into_requests(world: World) -> None:
    """Without a secret into http too; with one by TLS alone, beside an internet that is open."""
    await world.give(world.one, **{"api-key": CANARY})
    rules = {
        "bound.test": [{"transform": {"headers": {"Authorization": "Bearer ${e2b.secrets.api-key}"}}}],
        "allowed.test": [{"transform": {"headers": {"X-Team": "blue"}}}],
    }
    await world.allow(world.one, network(rules=rules))
    before = len(world.seen())
    answers = await world.run(
        world.one,
        "mine = [('authorization', 'mine')]\n"
        "show([fetch('bound.test', '/api/x', headers=mine).get('status'),\n"
        "fetch('allowed.test', port=80, tls=False).get('status'), fetch('evil.test').get('status'),\n"
        "fetch('bound.test', '/api/x', port=80, tls=False).get('status'),\n"
        "fetch('bound.test', port=8443).get('status')])",
    )
    assert answers[:3] == [200] * 3
    assert 200 not in answers[3:]
    bound, team, other = ({name.lower(): value for name, value in one["headers"]} for one in world.seen()[before:])
    assert bound["authorization"] == f"Bearer {CANARY}"
    assert (team["x-team"], "authorization" in team, "x-team" in other) == ("blue", False, False)
