"""Addresses of slots: a running number gives a pair in 100.64.0.0/10 (RFC 6598), and numbers come from a counter.

Each slot is a /31 (RFC 3021): the even address is the gateway namespace's end, the odd one stands for the guest. A
number is used once until the counter wraps after two million, so that nothing that still remembers a dead slot (a
pooled connection, a connection table, a guest that was moved) can meet the next guest at its address.
"""

import dataclasses
import ipaddress
import threading
from pathlib import Path

from space.host import files
from space.layout import Layout

NETWORK = ipaddress.IPv4Network("100.64.0.0/10")
LAST_NUMBER = NETWORK.num_addresses // 2 - 1
"""Numbers are 1 to this: the first pair holds the network's own address and stays unused."""

_RESERVED_AHEAD = 64
"""Numbers taken from the file at once: one fsync for so many slots, and at most so many lost at a crash."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """The two ends of a slot's link."""

    gateway: str
    slot: str


def pair(number: int) -> Pair:
    """Return the addresses of slot `number`; ValueError outside 1 to LAST_NUMBER."""
    if not 1 <= number <= LAST_NUMBER:
        raise ValueError(f"slot number {number} is not between 1 and {LAST_NUMBER}")
    first = NETWORK.network_address + 2 * number
    return Pair(gateway=str(first), slot=str(first + 1))


def counter_file(layout: Layout) -> Path:
    """Return where the next free number is kept."""
    return layout.data_dir / "worker" / "next-slot"


class SlotNumbers:
    """The counter. Its file holds a number that nobody has been given yet; it is moved ahead before any is given."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._next = self._reserved = self._read()

    def _read(self) -> int:
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            return 1
        number = int(text)
        if not 1 <= number <= LAST_NUMBER:
            raise ValueError(f"{self._file} holds {number}, not a slot number")
        return number

    def take(self) -> int:
        """Return a number that was not given before, also by an earlier process. Now and then it waits for an fsync."""
        with self._lock:
            if self._next == self._reserved:
                end = self._next + _RESERVED_AHEAD
                self._reserved = 1 if end > LAST_NUMBER else end
                files.write_atomic(self._file, f"{self._reserved}\n")
            number = self._next
            self._next = 1 if number == LAST_NUMBER else number + 1
            return number
