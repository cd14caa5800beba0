"""How often a client may be wrong: a small allowance for each address, which comes back with time.

It bounds the work that guessing causes. An address of IPv6 stands for its /64, since whoever has one has them all.
"""

import collections
import ipaddress
import time
from collections.abc import Callable

_MOST = 10_000


class Attempts:
    """Allowances of `burst` wrong attempts, of which `per_s` come back each second."""

    def __init__(self, burst: int, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._per_s, self._clock = burst, per_s, clock
        self._spent: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()
        """By client: how much of it was spent, as of when; the one used longest ago first."""

    def allowed(self, client: str) -> bool:
        """Tell whether one more wrong attempt of this client would be within its allowance."""
        return self._level(client) + 1 <= self._burst

    def wrong(self, client: str) -> None:
        """Note a wrong one."""
        level = self._level(client)
        who = _who(client)
        self._spent[who] = (level + 1, self._clock())
        self._spent.move_to_end(who)
        if len(self._spent) > _MOST:
            self._spent.popitem(last=False)

    def _level(self, client: str) -> float:
        spent, at = self._spent.get(_who(client), (0.0, 0.0))
        return max(0.0, spent - (self._clock() - at) * self._per_s)


def _who(client: str) -> str:
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client[:64]
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Network((int(address), 64), strict=False))
