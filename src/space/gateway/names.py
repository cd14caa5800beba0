"""The addresses that stand for names in one sandbox.

A guest that asks for an allowed name gets an address of 198.18.0.0/15 that means this name from then on, in this
sandbox and in whatever is forked or restored from it: a guest may remember an address for ever, so it never gets a
second name. Raw TCP has no other sign of the name than the address.
"""

import ipaddress
import secrets
from collections.abc import Mapping

from space.model import ranges
from space.model.errors import SpaceError

MAX_NAMES = 4096
"""Names of one sandbox. Under `*.suffix` a guest could make up names for ever, each with a certificate and a record."""

_FIRST = int(ranges.SYNTHETIC.network_address) + 1
_COUNT = ranges.SYNTHETIC.num_addresses - 2


class NamesExhausted(SpaceError):
    """The sandbox has been given as many names as one may have."""

    code, status, title = "names_exhausted", 429, "Too many names"


class Names:
    """Which address is which name.

    New ones follow each other from a random beginning, so that an address remembered from elsewhere (a template made of
    a guest that had looked names up) most likely means nothing, instead of another name.
    """

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._name_of: dict[str, str] = {}
        self._address_of: dict[str, str] = {}
        self._next = secrets.randbelow(_COUNT)
        self.learn(given or {})

    def __len__(self) -> int:
        return len(self._name_of)

    def name_of(self, address: str) -> str | None:
        """Return the name that an address stands for, None where it stands for nothing."""
        return self._name_of.get(address)

    def address_of(self, name: str) -> str | None:
        """Return the address of a name, None where it has none yet."""
        return self._address_of.get(name)

    def given(self) -> list[tuple[str, str]]:
        """Return all addresses with their names."""
        return list(self._name_of.items())

    def learn(self, given: Mapping[str, str]) -> None:
        """Add addresses that were given before, by whoever decided then; what is known already stays."""
        for address, name in given.items():
            if address not in self._name_of:
                self._name_of[address] = name
                self._address_of.setdefault(name, address)

    def propose(self, name: str) -> str:
        """Return the address that a name has, or one that is nobody's and never will be another's; it is not given yet.

        Raises NamesExhausted.
        """
        known = self._address_of.get(name)
        if known is not None:
            return known
        if len(self._name_of) >= MAX_NAMES:
            raise NamesExhausted(f"This sandbox has looked up {MAX_NAMES} names, and no more are resolved.")
        while True:
            address = str(ipaddress.IPv4Address(_FIRST + self._next))
            self._next = (self._next + 1) % _COUNT
            if address not in self._name_of:
                return address
