"""The sandboxes of this host as their traffic is judged: by which policy, with which names and secrets.

A guest is known by the address of its slot, which packet rules tie to the interface. All of it is what the worker told
this process since it started; a guest that it did not tell of is nobody, and nobody may do anything.
"""

import asyncio
import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from space.gateway.allowance import Allowance
from space.gateway.budgets import Budgets
from space.gateway.flights import Flights
from space.gateway.names import Names
from space.model.errors import NotFound, Stale
from space.model.ids import SandboxId
from space.model.policy import Policy
from space.model.policy_document import read
from space.model.rotation import Rotation, Rotations
from space.wire import gateway as wire

_DENY_ALL = Policy()
_FORMER = 16
"""Replaced values that are still taken out of answers: a server may show what it was sent before."""


@dataclasses.dataclass(slots=True)
class Guest:
    """One sandbox.

    `unseen`: it had connections before this process began, of which `flights` knows nothing. `told` are its secrets as
    the control plane has them, `secrets` what has come of them since.
    """

    sandbox: SandboxId
    address: str
    names: Names
    policy: Policy = _DENY_ALL
    generation: int = 0
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    told: Mapping[str, wire.SecretValue] = dataclasses.field(default_factory=dict)
    rotations: Rotations = dataclasses.field(default_factory=Rotations, repr=False)
    secrets_generation: int = 0
    former_secrets: collections.deque[str] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_FORMER), repr=False
    )
    flights: Flights = dataclasses.field(default_factory=Flights)
    budgets: Budgets = dataclasses.field(default_factory=Budgets)
    wasted: Allowance = dataclasses.field(default_factory=Allowance)
    unseen: bool = False

    def update(self, egress: wire.EgressOrder | None, secrets: wire.SecretsOrder | None) -> None:
        """Judge by this from now on, None leaves what is; raises Stale, InvalidPolicy, and then nothing changed."""
        if egress is not None and egress.generation < self.generation:
            raise Stale(f"The policy of generation {self.generation} is in force already.")
        if secrets is not None and secrets.generation < self.secrets_generation:
            raise Stale(f"The secrets of generation {self.secrets_generation} are in force already.")
        if egress is not None:
            policy = read(egress.policy)
            if egress.generation > self.generation:
                self.budgets = Budgets()
            self.policy, self.generation = policy, egress.generation
        if secrets is not None:
            self._keep(secrets)

    def _keep(self, order: wire.SecretsOrder) -> None:
        self.told, self.secrets_generation = order.values, order.generation
        self.fill()

    def fill(self) -> None:
        """Go by the newest value of each secret that was told."""
        told = {name: value.value.get_secret_value() for name, value in self.told.items()}
        newest = {name: self.rotations.newest(self.told[name].id, value) for name, value in told.items()}
        known = {*newest.values(), *self.former_secrets}
        former = dict.fromkeys((*self.secrets.values(), *told.values()))
        self.former_secrets.extend(value for value in former if value not in known)
        self.secrets = newest


class Guests:
    """All of them, by sandbox and by address."""

    def __init__(self) -> None:
        self._by_sandbox: dict[SandboxId, Guest] = {}
        self._by_address: dict[str, Guest] = {}
        self.rotations = Rotations()
        """What providers gave in place of secrets, until the control plane's orders have it."""
        self.rotated = asyncio.Event()
        """Set where there is a new one."""

    def rotate(self, secret: str, old: str, new: str) -> None:
        """Go by what a provider gave in place of a value of the secret with this id."""
        self.rotations.rotate(secret, old, new)
        self._rotated()

    def note_rotations(self, rotations: Iterable[Rotation]) -> None:
        """Go by what an earlier gateway was given."""
        for rotation in rotations:
            self.rotations.note(rotation)
        self._rotated()

    def _rotated(self) -> None:
        for guest in self:
            guest.fill()
        self.rotated.set()

    def forget_rotations(self) -> None:
        """Drop what is stored and in the secrets that were told."""
        told = (value for guest in self for value in guest.told.values())
        self.rotations.forget_used((value.id, value.value.get_secret_value()) for value in told)

    def __iter__(self) -> Iterator[Guest]:
        return iter(self._by_sandbox.values())

    def at(self, address: str) -> Guest | None:
        """Return who is behind a slot's address."""
        return self._by_address.get(address)

    def of(self, sandbox: SandboxId) -> Guest:
        """Return a sandbox; raises NotFound."""
        guest = self._by_sandbox.get(sandbox)
        if guest is None:
            raise NotFound(f"Sandbox {sandbox} has no slot here.")
        return guest

    def put(self, sandbox: SandboxId, entry: wire.SlotEntry) -> Guest:
        """Know a sandbox by what the worker says of it; raises Stale, InvalidPolicy, and then nothing changed."""
        address = str(entry.address)
        old = self._by_sandbox.get(sandbox)
        # The same slot keeps its object, so that a decision under way sees what changes. Another slot is another life:
        # nothing of the former one's connections is left.
        guest = old if old is not None and old.address == address else self._new(sandbox, address)
        guest.update(entry.egress, entry.secrets)
        guest.names.learn(entry.names)
        self.remove(sandbox)
        self._by_sandbox[sandbox] = self._by_address[address] = guest
        return guest

    def _new(self, sandbox: SandboxId, address: str) -> Guest:
        return Guest(sandbox, address, Names(), rotations=self.rotations)

    def remove(self, sandbox: SandboxId) -> None:
        """Forget a sandbox and its secrets; fine when it is unknown."""
        guest = self._by_sandbox.pop(sandbox, None)
        if guest is not None and self._by_address.get(guest.address) is guest:
            del self._by_address[guest.address]

    def replace(self, entries: Mapping[SandboxId, wire.SlotEntry]) -> dict[SandboxId, Guest]:
        """Know these and no others. Those that are new here were there before this process: they are `unseen`."""
        for sandbox in self._by_sandbox.keys() - entries.keys():
            self.remove(sandbox)
        known = set(self._by_sandbox)
        found = {sandbox: self.put(sandbox, entry) for sandbox, entry in entries.items()}
        for sandbox, guest in found.items():
            guest.unseen = guest.unseen or sandbox not in known
        return found
