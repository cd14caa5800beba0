"""Guests' lookups: who asks, which address a name gets, and that the worker has recorded it before the guest knows."""

import asyncio
import time

from space.gateway import dns
from space.gateway.audit import Audit
from space.gateway.guests import Guest, Guests
from space.gateway.names import NamesExhausted
from space.gateway.orders import Orders
from space.gateway.settling import raw_targets_of
from space.model.errors import SpaceError
from space.model.ids import SandboxId
from space.model.policy_reach import may_resolve
from space.wire import gateway as wire

NEW_BURST, NEW_PER_S = 100.0, 20.0
"""New names of one sandbox: each costs the worker a record on disk."""

_MAX_SHOWN = 253


class Lookup:
    """Answers for all guests."""

    def __init__(self, guests: Guests, orders: Orders, audit: Audit) -> None:
        self._guests, self._orders, self._audit = guests, orders, audit
        self._giving: dict[tuple[SandboxId, str], asyncio.Future[str]] = {}
        self._budget: dict[SandboxId, tuple[float, float]] = {}

    async def answer(self, question: bytes, source: str) -> bytes | None:
        """Answer a question from an address."""
        return await dns.answer(question, self._guests.at(source), self.give, self._note)

    def wanted(self, name: str) -> bool:
        """Tell whether some guest was given an address for a canonical name and may still look it up."""
        return any(
            guest.names.address_of(name) is not None and may_resolve(guest.policy, name) for guest in self._guests
        )

    async def give(self, guest: Guest, name: str) -> str:
        """Return an address for a name that has none, once the worker has recorded it.

        Raises NamesExhausted, or Unavailable where the worker does not answer; then the guest does not learn it.
        """
        key = guest.sandbox, name
        if key not in self._giving:
            self._charge(guest.sandbox)
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._giving[key] = future
            try:
                address = await self._record(guest, name)
            except SpaceError as error:
                future.set_exception(error)
                future.exception()  # seen, whether or not another waits for it
                raise
            except BaseException:
                future.cancel()
                raise
            finally:
                del self._giving[key]
            future.set_result(address)
            return address
        return await asyncio.shield(self._giving[key])

    async def _record(self, guest: Guest, name: str) -> str:
        address = guest.names.propose(name)
        await self._orders.carry_out(
            lambda order: wire.NameGiven(
                order=order,
                sandbox=guest.sandbox,
                address=address,
                name=name,
                raw=list(raw_targets_of(guest.policy, address, name)),
            )
        )
        guest.names.learn({address: name})
        return address

    def _charge(self, sandbox: SandboxId) -> None:
        now_s = time.monotonic()
        left, at_s = self._budget.get(sandbox, (NEW_BURST, now_s))
        left = min(NEW_BURST, left + (now_s - at_s) * NEW_PER_S)
        if left < 1:
            raise NamesExhausted(f"This sandbox looks up more than {NEW_PER_S:.0f} new names a second.")
        self._budget[sandbox] = (left - 1, now_s)

    def _note(self, guest: Guest, name: str, refusal: str | None) -> None:
        """Record a refusal; what is answered shows up when it is used."""
        if refusal is not None:
            self._audit.note(
                "verdict", guest.sandbox, generation=guest.generation, protocol="dns", name=name[:_MAX_SHOWN],
                allowed=False, why=refusal,
            )  # fmt: skip
