"""gateway.orders: the watch on which the worker is told, and its end."""

import asyncio

import pytest

from space.gateway.orders import Orders
from space.model.errors import Unavailable
from space.wire import gateway as wire

_DEADLINE_S = 30


async def test_no_watch_outlives_the_gateways_end() -> None:
    """A worker watches again a tenth of a second after its watch has ended; the server may not have stopped by then."""
    orders = Orders()
    open_one = orders.watch()
    async with asyncio.timeout(_DEADLINE_S):
        await anext(open_one)
        orders.close()
        assert [line async for line in open_one] == []
        assert [line async for line in orders.watch()] == []
        with pytest.raises(Unavailable):
            await orders.carry_out(lambda number: wire.EndConnections(order=number, sandbox="s", address="a", ports=[]))
