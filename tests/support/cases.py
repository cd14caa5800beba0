"""The catalogue of attacks: what each tries, by which record outside the guest it is judged, and how it is run.

Ids are those of the security catalogue (D-01, T-05 ...) and of the review of the egress path (EGRESS-C1 ...). A case is
a function over a running range (range.py); it raises AssertionError when the attack succeeded, and also when the
positive control in it failed: a guest that can do nothing at all proves nothing.
"""

import dataclasses
from collections.abc import Awaitable, Callable

from tests.support.range import Range

Attempt = Callable[[Range], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class Case:
    """One attack. `core` ones are quick and are run again after every change of state."""

    id: str
    tried: str
    oracle: str
    core: bool
    attempt: Attempt


CASES: dict[str, Case] = {}


def case(id: str, tried: str, oracle: str, *, core: bool = False) -> Callable[[Attempt], Attempt]:  # noqa: A002
    """Enter a function into the catalogue."""

    def enter(attempt: Attempt) -> Attempt:
        assert id not in CASES, id
        CASES[id] = Case(id, tried, oracle, core, attempt)
        return attempt

    return enter
