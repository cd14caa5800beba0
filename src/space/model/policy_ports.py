"""Ports as ranges, and arithmetic on lists of them."""

from collections.abc import Sequence
from typing import NamedTuple


class PortRange(NamedTuple):
    """Ports from `first` to `last`, both included."""

    first: int
    last: int

    def __contains__(self, port: object) -> bool:
        return isinstance(port, int) and self.first <= port <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


ALL_PORTS = PortRange(1, 65535)


def merged(ranges: Sequence[PortRange]) -> list[PortRange]:
    """Return the same ports as ranges in order that neither touch nor overlap."""
    found: list[PortRange] = []
    for ports in sorted(ranges):
        if found and ports.first <= found[-1].last + 1:
            found[-1] = PortRange(found[-1].first, max(found[-1].last, ports.last))
        else:
            found.append(ports)
    return found


def minus(ranges: Sequence[PortRange], taken: Sequence[PortRange]) -> list[PortRange]:
    """Return the ports of `ranges` that are not in `taken`."""
    left = list(ranges)
    for gap in taken:
        parts = [
            part
            for ports in left
            for part in (
                PortRange(ports.first, min(ports.last, gap.first - 1)),
                PortRange(max(ports.first, gap.last + 1), ports.last),
            )
        ]
        left = [part for part in parts if part.first <= part.last]
    return left
