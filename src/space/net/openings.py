"""What a slot's guest may open raw TCP connections to, as elements of the gateway namespace's sets.

The gateway says what the policy of a sandbox lists; here that becomes packet rules: connections to these targets go to
the gateway's relay instead of being refused. A target is a network and a range of ports: one synthetic address, or a
listed CIDR. Those in a range that is otherwise refused (model/ranges.py) are opened on the gateway's way out, too, and
so are the networks in which a policy expects a name.
"""

import asyncio
import dataclasses
from collections.abc import Collection, Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from space.model import ranges
from space.net import nft


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Target:
    """TCP to these addresses and ports."""

    network: IPv4Network
    first_port: int
    last_port: int

    @classmethod
    def of(cls, network: IPv4Network | IPv6Network, first_port: int, last_port: int) -> "Target":
        """Return a target; ValueError for IPv6, for which there is no way out."""
        if isinstance(network, IPv6Network):
            raise ValueError(f"{network} is no IPv4 network")  # noqa: TRY004 - of the right type, not of the right kind
        return cls(network, first_port, last_port)

    @property
    def synthetic(self) -> bool:
        """Whether it stands for a name."""
        return self.network.subnet_of(ranges.SYNTHETIC)

    @property
    def private(self) -> bool:
        """Whether it is in a range that has to be named to be reached."""
        return not self.synthetic and any(self.network.overlaps(refused) for refused in ranges.NEVER)

    def element(self) -> str:
        """Return it as nft writes a network and ports, concatenated."""
        ports = str(self.first_port) if self.first_port == self.last_port else f"{self.first_port}-{self.last_port}"
        return f"{self.network if self.network.prefixlen < 32 else self.network.network_address} . {ports}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Opened:
    raw: frozenset[Target] = frozenset()
    private: frozenset[Target] = frozenset()


_NOTHING = _Opened()
_SETS = ("raw", "cidr", "private_ok")


class Openings:
    """What is open to every slot, by its address, in step with the sets in `gateway`, the namespace's path."""

    def __init__(self, gateway: Path) -> None:
        self._gateway = gateway
        self._open: dict[str, _Opened] = {}
        self._lock = asyncio.Lock()  # sets are changed by their difference, one change at a time

    async def clear(self) -> None:
        """Forget all that a former process left open. New connections are refused until it is said again."""
        async with self._lock:
            await nft.load(self._gateway, "".join(f"flush set inet space_gw {name}\n" for name in _SETS))
            self._open.clear()

    async def replace(self, slot: str, raw: Collection[Target], private: Collection[Target] = ()) -> None:
        """Make this all that is open to the slot with this address: `raw` to its guest, `private` to proxies for it.

        Raises CommandError; nothing changed then.
        """
        async with self._lock:
            await self._change(slot, _Opened(frozenset(raw), frozenset(private)))

    async def add(self, slot: str, raw: Collection[Target]) -> None:
        """Open these to the slot's guest too."""
        async with self._lock:
            now = self._open.get(slot, _NOTHING)
            await self._change(slot, _Opened(now.raw | frozenset(raw), now.private))

    async def _change(self, slot: str, wanted: _Opened) -> None:
        if wanted == self._open.get(slot, _NOTHING):
            return
        others = {address: opened for address, opened in self._open.items() if address != slot}
        wish = {**others, slot: wanted} if wanted != _NOTHING else others
        before, after = _elements(self._open), _elements(wish)
        lines = [
            f"{verb} element inet space_gw {name} {{ {', '.join(sorted(elements))} }}\n"
            for verb, left, right in (("delete", before, after), ("add", after, before))
            for name in _SETS
            if (elements := left[name] - right[name])
        ]
        if lines:
            await nft.load(self._gateway, "".join(lines))
        self._open = wish


def _elements(opened: Mapping[str, _Opened]) -> dict[str, set[str]]:
    """Return the elements of each set."""
    found: dict[str, set[str]] = {name: set() for name in _SETS}
    for slot, open_to in opened.items():
        single = {t for t in open_to.raw if t.network.prefixlen == 32 and t.first_port == t.last_port}
        found["raw"] |= {f"{slot} . {t.element()}" for t in single}
        found["cidr"] |= {f"{slot} . {t.element()}" for t in _disjoint(open_to.raw - single)}
    named = {target for open_to in opened.values() for target in open_to.raw | open_to.private if target.private}
    found["private_ok"] = {target.element() for target in _disjoint(named)}
    return found


def _disjoint(targets: Collection[Target]) -> set[Target]:
    """Return targets that cover the same and do not overlap: nft refuses intervals that do.

    A wider network goes before a narrower one; of the narrower one the ports are kept that the wider ones do not have.
    """
    kept: list[Target] = []
    for target in sorted(targets, key=lambda t: (t.network.prefixlen, t)):
        around = [k for k in kept if target.network.subnet_of(k.network)]
        first = target.first_port
        for cover in sorted(around, key=lambda t: t.first_port):
            if cover.last_port < first or cover.first_port > target.last_port:
                continue
            if cover.first_port > first:
                kept.append(Target(target.network, first, cover.first_port - 1))
            first = cover.last_port + 1
        if first <= target.last_port:
            kept.append(Target(target.network, first, target.last_port))
    return set(kept)
