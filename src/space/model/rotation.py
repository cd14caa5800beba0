"""Secrets that their provider replaces: an OAuth server may answer a refresh token's use with the one to use next.

The gateway that was given the next one is the only one that has it, and the former is of no use any more. So it goes to
the control plane, which keeps it in place of the former, and until that is known to have happened everybody on the way
remembers it. Values are compared by fingerprints: a rotation holds only where a value stands that it is known to
replace, and so never overwrites what somebody set meanwhile, nor what another gateway was given.
"""

import dataclasses
import hashlib
from collections.abc import Iterable

_CHAIN = 256
"""Fingerprints of replaced values in one rotation: the first, which is likely what is stored, and the newest."""


def fingerprint(value: str) -> str:
    """Return what tells a value from others without showing it."""
    return hashlib.sha256(value.encode()).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class Rotation:
    """`value` comes in the place of any value that has a fingerprint of `after`, for the secret with this id."""

    secret: str
    value: str = dataclasses.field(repr=False)
    after: tuple[str, ...]

    def replaces(self, value: str) -> bool:
        """Tell whether this is what came of a value."""
        return value != self.value and fingerprint(value) in self.after


@dataclasses.dataclass(slots=True)
class _Held:
    rotation: Rotation
    stored: bool = False


class Rotations:
    """Those that a process knows of: the newest of each secret."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def rotate(self, secret: str, old: str, new: str) -> None:
        """Note that a provider gave `new` for `old`."""
        held = self._held.get(secret)
        before = held.rotation.after if held is not None and held.rotation.value == old else ()
        after = (*before, fingerprint(old))
        if len(after) > _CHAIN:
            after = (after[0], *after[2:])
        self._held[secret] = _Held(Rotation(secret, new, after))

    def note(self, rotation: Rotation) -> bool:
        """Remember one that another process knows of; False where this one or a later one is known."""
        held = self._held.get(rotation.secret)
        if held is not None and (held.rotation.value == rotation.value or held.rotation.replaces(rotation.value)):
            return False
        self._held[rotation.secret] = _Held(rotation)
        return True

    def newest(self, secret: str, value: str) -> str:
        """Return what has come of a secret's value, or the value itself."""
        held = self._held.get(secret)
        return held.rotation.value if held is not None and held.rotation.replaces(value) else value

    def known(self) -> list[Rotation]:
        """Return all."""
        return [held.rotation for held in self._held.values()]

    def unstored(self) -> list[Rotation]:
        """Return those of which the control plane has not said that it has seen to them."""
        return [held.rotation for held in self._held.values() if not held.stored]

    def mark_stored(self, secret: str, print_of_value: str) -> None:
        """Note that the control plane has seen to the rotation to a value; nothing happens where there is a later."""
        held = self._held.get(secret)
        if held is not None and fingerprint(held.rotation.value) == print_of_value:
            held.stored = True

    def forget_used(self, values: Iterable[tuple[str, str]]) -> None:
        """Drop those that are stored and that none of these values, of the secrets with these ids, still needs."""
        needed = {secret for secret, value in values if self.newest(secret, value) != value}
        self._held = {secret: held for secret, held in self._held.items() if not held.stored or secret in needed}
