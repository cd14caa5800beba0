"""What a slot's guest may open raw TCP connections to, as elements of the gateway namespace's sets.

The gateway says what the policy of a sandbox lists; here that becomes packet rules: connections to these targets go to
the gateway's relay instead of being refused. A target is a network and a range of ports: one synthetic address, or a
listed CIDR, or the whole public internet. Those in a range that is otherwise refused (model/ranges.py) are opened on
the gateway's way out, too, and so are the networks in which a policy expects a name.
"""

import asyncio
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    def everywhere(self) -> bool:
        """Whether it is the public internet."""
        return self.network.prefixlen == 0

    @property
    def private(self) -> bool:
        """Whether it is in a range that has to be named to be reached."""
        return (
            not self.everywhere
            and not self.synthetic
            and any(self.network.overlaps(refused) for refused in ranges.NEVER)
        )

    @property
    def one_port(self) -> bool:
        """Whether it is one port."""
        return self.first_port == self.last_port

    def element(self) -> str:
        """Return it as nft writes a network and ports, concatenated; ports alone where the network is everything."""
        ports = str(self.first_port) if self.one_port else f"{self.first_port}-{self.last_port}"
        if self.everywhere:
            return ports
        return f"{self.network if self.network.prefixlen < 32 else self.network.network_address} . {ports}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Opened:
    raw: frozenset[Target] = frozenset()
    private: frozenset[Target] = frozenset()

    @property
    def named(self) -> frozenset[Target]:
        """Those in a range that has to be named to be reached."""
        return frozenset(target for target in self.raw | self.private if target.private)


_NOTHING = _Opened()
_SETS = ("raw", "cidr", "everywhere", "private_ok")


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
        now = self._open.get(slot, _NOTHING)
        if wanted == now:
            return
        others = {address: opened for address, opened in self._open.items() if address != slot}
        wish = {**others, slot: wanted} if wanted != _NOTHING else others
        before, after = _elements(slot, now), _elements(slot, wanted)
        if now.named or wanted.named:
            before["private_ok"], after["private_ok"] = _private(self._open.values()), _private(wish.values())
        lines = [
            f"{verb} element inet space_gw {name} {{ {', '.join(sorted(elements))} }}\n"
            for verb, left, right in (("delete", before, after), ("add", after, before))
            for name in _SETS
            if (elements := left.get(name, set()) - right.get(name, set()))
        ]
        if lines:
            await nft.load(self._gateway, "".join(lines))
        self._open = wish


def _elements(slot: str, opened: _Opened) -> dict[str, set[str]]:
    """Return one slot's elements of each set."""
    single = {target for target in opened.raw if target.network.prefixlen == 32 and target.one_port}
    ranges_of = _disjoint(opened.raw - single)
    return {
        "raw": {f"{slot} . {target.element()}" for target in single},
        "cidr": {f"{slot} . {target.element()}" for target in ranges_of if not target.everywhere},
        "everywhere": {f"{slot} . {target.element()}" for target in ranges_of if target.everywhere},
    }


def _private(opened: Iterable[_Opened]) -> set[str]:
    """Return the elements of the set of private targets, which all slots have in common."""
    return {target.element() for target in _disjoint({target for one in opened for target in one.named})}


def _disjoint(targets: Collection[Target]) -> set[Target]:
    """Return targets that cover the same and do not overlap: nft refuses intervals that do.

    A wider network goes before a narrower one; of the narrower one the ports are kept that the wider ones do not have.
    The public internet covers nothing: its packets are looked for in a set of their own.
    """
    kept: dict[IPv4Network, list[Target]] = {}
    lengths = sorted({target.network.prefixlen for target in targets if not target.everywhere})
    for target in sorted(targets, key=lambda t: (t.network.prefixlen, t)):
        first = target.first_port
        for cover in sorted(_around(target, kept, lengths), key=lambda t: t.first_port):
            if cover.last_port < first or cover.first_port > target.last_port:
                continue
            if cover.first_port > first:
                kept.setdefault(target.network, []).append(Target(target.network, first, cover.first_port - 1))
            first = cover.last_port + 1
        if first <= target.last_port:
            kept.setdefault(target.network, []).append(Target(target.network, first, target.last_port))
    return {target for of_network in kept.values() for target in of_network}


def _around(target: Target, kept: Mapping[IPv4Network, list[Target]], lengths: Sequence[int]) -> list[Target]:
    """Return what is kept of the networks that contain a target's, its own among them."""
    if target.everywhere:
        return list(kept.get(target.network, ()))
    networks = (target.network.supernet(new_prefix=n) for n in lengths if n <= target.network.prefixlen)
    return [one for network in networks for one in kept.get(network, ())]
