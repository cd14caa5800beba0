"""A guest's way out, with everything real between it and the servers outside: what works, and what must not."""

import os
from collections.abc import AsyncGenerator

import pytest
from tests.support import egress_world
from tests.support.egress_world import World

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")

PUBLIC = {"allow": [{"host": "allowed.test", "methods": ["GET"], "paths": ["/public/**"]}]}


@pytest.fixture(scope="module")
async def world() -> AsyncGenerator[World]:
    """All of it, once."""
    async with egress_world.world() as made:
        yield made


async def test_an_allowed_request_arrives_as_the_guest_made_it(world: World) -> None:
    await world.allow(world.one, PUBLIC)
    answer = await world.fetch(world.one, "allowed.test", "/public/x?a=b", headers=[("X-Mine", "1")])
    assert answer["status"] == 200, answer
    seen = answer["json"]
    assert (seen["method"], seen["path"], seen["sni"]) == ("GET", "/public/x?a=b", "allowed.test")
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert headers == {"host": "allowed.test", "x-mine": "1"}
