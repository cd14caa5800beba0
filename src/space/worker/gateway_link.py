"""Keeps the gateway's map of slots equal to ours, across restarts of either side."""

import asyncio
from collections.abc import Mapping

from space.model.errors import Unavailable
from space.model.ids import SandboxId
from space.telemetry import logger
from space.wire.gateway import GatewayClient, SlotEntry

log = logger()
_RETRY_S = 0.1
_ADMIT_S = 10


def _entry(address: str) -> SlotEntry:
    return SlotEntry.model_validate({"address": address})


class GatewayLink:
    """The wish (which sandbox is reached at which slot address) and the loop that makes the gateway know it."""

    def __init__(self, client: GatewayClient, slots: Mapping[SandboxId, str]) -> None:
        self._client = client
        self._slots = dict(slots)
        self._linked = asyncio.Event()

    async def run(self) -> None:
        """Hold the gateway's watch for ever; after each (re)connection tell it the whole map."""
        while True:
            try:
                async for _ in self._client.watch():
                    if not self._linked.is_set():
                        await self._client.put_slots({name: _entry(address) for name, address in self._slots.items()})
                        self._linked.set()
                        log.info("gateway_linked", slots=len(self._slots))
            except Unavailable:
                if self._linked.is_set():
                    log.warning("gateway_lost")
                self._linked.clear()
            await asyncio.sleep(_RETRY_S)

    async def admit(self, sandbox: SandboxId, address: str) -> None:
        """Let requests for `sandbox` through; returns when the gateway knows it, raises Unavailable after 10 s."""
        self._slots[sandbox] = address
        try:
            async with asyncio.timeout(_ADMIT_S):
                while not await self._told(sandbox, address):
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            raise Unavailable("The gateway of this host does not answer; see `space doctor`.") from None

    async def _told(self, sandbox: SandboxId, address: str) -> bool:
        await self._linked.wait()
        try:
            await self._client.put_slot(sandbox, _entry(address))
        except Unavailable:
            return False
        return True

    async def withdraw(self, sandbox: SandboxId) -> None:
        """Refuse requests for `sandbox` from now on. A gateway that is gone refuses everything anyway."""
        self._slots.pop(sandbox, None)
        try:
            await self._client.delete_slot(sandbox)
        except Unavailable:
            log.info("gateway_withdraw_deferred", sandbox=sandbox)
