"""Keeps the gateway's knowledge of slots equal to ours, across restarts of either side, and does what it asks for.

The gateway decides, and this process, which is root, makes true what follows: which targets packets may reach, and that
connections which are no longer allowed end. Secrets and the authority are kept here in memory, to be told again when
the gateway was restarted; they are never written.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from space.host import netns
from space.host.command import CommandError
from space.layout import Layout
from space.model.errors import InvalidArgument, NotFound, SpaceError, Stale, Unavailable
from space.model.ids import SandboxId
from space.model.rotation import Rotation, Rotations
from space.net import nft, slot
from space.net.openings import Openings, Target
from space.telemetry import logger
from space.wire.gateway import (
    EGRESS_HTTP_PORT,
    Authority,
    EgressOrder,
    EndConnections,
    GatewayClient,
    Mute,
    NameGiven,
    RawTarget,
    SecretRotated,
    SecretsOrder,
    Settled,
    SlotEntry,
)

log = logger()
_RETRY_S = 0.1
_ADMIT_S = 10
Named = Callable[[SandboxId, str, str], None]
"""Records, on storage, that a sandbox's guest is given an address for a name."""
Rotate = Callable[[Rotation], None]
"""Tells the control plane, once, of a secret that its provider has rotated."""


class GatewayLink:
    """The wish (each sandbox's slot, and what may leave it) and the loop that makes the gateway know it."""

    def __init__(
        self, layout: Layout, client: GatewayClient, openings: Openings, slots: Mapping[SandboxId, SlotEntry]
    ) -> None:
        self._layout, self.client, self._openings = layout, client, openings
        self._slots = dict(slots)
        self._secrets: dict[SandboxId, SecretsOrder] = {}
        self._authority: Authority | None = None
        self._linked = asyncio.Event()
        self.rotations = Rotations()
        self._asked_of: dict[str, int] = {}

    @property
    def authority(self) -> Authority | None:
        """What certificates are signed with; None until the control plane said."""
        return self._authority

    def secrets_generation(self, sandbox: SandboxId) -> int:
        """Return the generation of a sandbox's secrets that are here, 0 for none."""
        return self._secrets[sandbox].generation if sandbox in self._secrets else 0

    async def run(self, named: Named, rotate: Rotate) -> None:
        """Hold the gateway's watch for ever; after each (re)connection tell it everything."""
        await self._openings.clear()
        while True:
            try:
                async with contextlib.aclosing(self.client.watch()) as lines:
                    async for line in lines:
                        if not self._linked.is_set():
                            await self._tell_all()
                        if isinstance(line, NameGiven | EndConnections | Mute):
                            await self._carry_out(line, named)
                        elif isinstance(line, SecretRotated):
                            self._take(line, rotate)
            except (SpaceError, CommandError) as error:
                if self._linked.is_set() or not isinstance(error, Unavailable):
                    log.warning("gateway_lost", error=str(error))
                self._linked.clear()
            await asyncio.sleep(_RETRY_S)

    async def _tell_all(self) -> None:
        told = {sandbox: self._entry(sandbox) for sandbox in self._slots}
        try:
            settled = await self.client.put_slots(told, self._authority, self.rotations.known())
        except InvalidArgument as error:  # a policy that was good for an older release must not cost the others theirs
            log.warning("gateway_refused_all", error=str(error))
            await self.client.put_slots({}, self._authority, self.rotations.known())
            settled = {sandbox: await self._put_alone(sandbox, entry) for sandbox, entry in told.items()}
        for sandbox, wanted in settled.items():
            await self._settle(str(told[sandbox].address), wanted)
        for sandbox, entry in told.items():
            while sandbox in self._slots and (now := self._entry(sandbox)) != entry:  # changed meanwhile
                await self._settle(str(now.address), await self.client.put_slot(sandbox, now))
                entry = now  # noqa: PLW2901 - what it was told last
        self._linked.set()
        log.info("gateway_linked", slots=len(told))

    async def _put_alone(self, sandbox: SandboxId, entry: SlotEntry) -> Settled:
        try:
            return await self.client.put_slot(sandbox, entry)
        except InvalidArgument as error:
            log.error("policy_refused", sandbox=sandbox, error=str(error))  # noqa: TRY400 - its text is all there is
            return await self.client.put_slot(sandbox, entry.model_copy(update={"egress": None}))

    def _entry(self, sandbox: SandboxId) -> SlotEntry:
        return self._slots[sandbox].model_copy(update={"secrets": self._secrets.get(sandbox)})

    async def _carry_out(self, order: NameGiven | EndConnections | Mute, named: Named) -> None:
        """Do one order; one that fails stays undone, and what waits for it at the gateway is refused."""
        sandbox = SandboxId(order.sandbox)
        entry = self._slots.get(sandbox)
        try:
            if isinstance(order, EndConnections):
                await slot.kill_connections(self._layout, order.address, EGRESS_HTTP_PORT, order.ports)
            elif entry is None:
                pass  # it has just gone
            elif isinstance(order, Mute):
                await nft.mute(netns.path(self._layout.gateway_netns), str(entry.address), order.seconds)
                log.warning("slot_muted", sandbox=sandbox, seconds=round(order.seconds, 1))
            else:
                named(sandbox, order.address, order.name)
                names = {**entry.names, order.address: order.name}
                self._slots[sandbox] = entry.model_copy(update={"names": names})
                await self._openings.add(str(entry.address), _targets(order.raw))
        except (CommandError, OSError) as error:
            log.warning("gateway_order_failed", sandbox=sandbox, order=order.type, error=str(error))
            return
        await self.client.done(order.order)

    def _take(self, line: SecretRotated, rotate: Rotate) -> None:
        """Remember what the gateway has been given, also for the next gateway, and pass it on."""
        rotation = line.to_rotation()
        self._asked_of[rotation.secret] = line.order
        if self.rotations.note(rotation):
            log.info("secret_rotated", secret=rotation.secret)
            rotate(rotation)

    async def rotation_stored(self, secret: str, print_of_value: str) -> None:
        """Note that the control plane has seen to a rotation; it is kept for as long as a value here needs it."""
        self.rotations.mark_stored(secret, print_of_value)
        self._forget_rotations()
        if all(rotation.secret != secret for rotation in self.rotations.unstored()) and secret in self._asked_of:
            with contextlib.suppress(Unavailable):  # it asks again
                await self.client.done(self._asked_of.pop(secret))

    def _forget_rotations(self) -> None:
        values = (value for order in self._secrets.values() for value in order.values.values())
        self.rotations.forget_used((value.id, value.value.get_secret_value()) for value in values)

    async def _settle(self, address: str, settled: Settled) -> None:
        """Make true what the gateway decides by now. Raises CommandError."""
        await self._openings.replace(address, _targets(settled.raw), _targets(settled.private))
        if settled.end_all or settled.end:
            ports = None if settled.end_all else settled.end
            await slot.kill_connections(self._layout, address, EGRESS_HTTP_PORT, ports)

    # -- slots ---------------------------------------------------------------------------------------------------------

    async def admit(self, sandbox: SandboxId, entry: SlotEntry) -> None:
        """Let requests for `sandbox` in, and of its guest out by its policy.

        Returns when the gateway knows it; raises Unavailable after 10 s.
        """
        self._slots[sandbox] = entry
        try:
            async with asyncio.timeout(_ADMIT_S):
                while not await self._told(sandbox):
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            raise Unavailable("The gateway of this host does not answer; see `space doctor`.") from None

    async def _told(self, sandbox: SandboxId) -> bool:
        await self._linked.wait()
        entry = self._entry(sandbox)
        try:
            settled = await self.client.put_slot(sandbox, entry)
        except Unavailable:
            return False
        await self._settle(str(entry.address), settled)
        return True

    async def withdraw(self, sandbox: SandboxId) -> None:
        """Refuse everything for and of `sandbox` from now on. A gateway that is gone refuses everything anyway."""
        entry = self._slots.pop(sandbox, None)
        if entry is not None:
            await self._openings.replace(str(entry.address), ())
        try:
            await self.client.delete_slot(sandbox)
        except Unavailable:
            log.info("gateway_withdraw_deferred", sandbox=sandbox)

    def forget(self, sandbox: SandboxId) -> None:
        """Drop the secrets of a sandbox that will not come back."""
        self._secrets.pop(sandbox, None)
        self._forget_rotations()

    # -- what may leave ------------------------------------------------------------------------------------------------

    async def put_egress(self, sandbox: SandboxId, order: EgressOrder) -> None:
        """Let this leave a sandbox from now on; what it no longer allows has ended when this returns.

        While the gateway is gone, nothing new leaves, and since nobody knows what a live connection carries, all of
        them end. Raises InvalidPolicy and Stale, and then nothing changed.
        """
        entry = self._slots.get(sandbox)
        if entry is None:  # it has no slot: whoever gives it one will know the policy
            return
        if entry.egress is not None and order.generation < entry.egress.generation:
            raise Stale(f"The policy of generation {entry.egress.generation} is in force already.")
        # ours first: a gateway that is being told everything just now is told this, too
        self._slots[sandbox] = wanted = entry.model_copy(update={"egress": order})
        try:
            settled = await self.client.put_egress(sandbox, order)
        except (Unavailable, NotFound):  # gone, or back and not told yet
            settled = Settled(end_all=True)
        except SpaceError:
            if self._slots.get(sandbox) is wanted:
                self._slots[sandbox] = entry
            raise
        await self._settle(str(entry.address), settled)

    async def put_secrets(self, sandbox: SandboxId, order: SecretsOrder) -> None:
        """Use these values from the next request on. Raises Stale."""
        if order.generation < self.secrets_generation(sandbox):
            raise Stale(f"The secrets of generation {self.secrets_generation(sandbox)} are here already.")
        self._secrets[sandbox] = order
        self._forget_rotations()
        if sandbox in self._slots:
            with contextlib.suppress(Unavailable, NotFound):  # told with everything else when it is back
                await self.client.put_secrets(sandbox, order)

    async def put_authority(self, authority: Authority) -> None:
        """Sign with this from now on. Raises InvalidArgument."""
        with contextlib.suppress(Unavailable):  # likewise
            await self.client.put_authority(authority)
        self._authority = authority


def _targets(raw: list[RawTarget]) -> list[Target]:
    return [Target.of(target.cidr, target.first_port, target.last_port) for target in raw]
