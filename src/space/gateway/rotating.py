"""Tells the worker, for the control plane, what providers gave in place of secrets, until it is stored.

A rotated value is gone for good with the last process that has it. So it is told at once, to a worker that remembers it
for this process's successor; and again and again, since the worker, too, may be another one by then.
"""

import asyncio

from pydantic import SecretStr

from space.gateway.audit import Audit
from space.gateway.guests import Guests
from space.gateway.orders import Orders
from space.model.errors import Unavailable
from space.model.rotation import Rotation, fingerprint
from space.wire.gateway import SecretRotated

_STORED_S = 5.0
_RETRY_S = 1.0


async def tell(guests: Guests, orders: Orders, audit: Audit) -> None:
    """Tell of each rotation, for ever."""
    under_way: dict[str, Rotation] = {}

    async def one(rotation: Rotation) -> None:
        while rotation in guests.rotations.unstored():
            try:
                await orders.carry_out(lambda number: _line(rotation, number), _STORED_S)
            except Unavailable:
                await asyncio.sleep(_RETRY_S)
                continue
            guests.rotations.mark_stored(rotation.secret, fingerprint(rotation.value))
            guests.forget_rotations()

    async with asyncio.TaskGroup() as group:
        while True:
            await guests.rotated.wait()
            guests.rotated.clear()
            for rotation in guests.rotations.unstored():
                if under_way.get(rotation.secret) != rotation:
                    under_way[rotation.secret] = rotation
                    _note(guests, audit, rotation.secret)
                    group.create_task(one(rotation))


def _line(rotation: Rotation, number: int) -> SecretRotated:
    return SecretRotated(secret=rotation.secret, value=SecretStr(rotation.value), after=[*rotation.after], order=number)


def _note(guests: Guests, audit: Audit, secret: str) -> None:
    for guest in guests:
        for name in (name for name, value in guest.told.items() if value.id == secret):
            audit.note("rotated", guest.sandbox, why=f"the token endpoint gave a new value for the secret {name}")
