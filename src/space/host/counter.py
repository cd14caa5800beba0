"""A counter on disk that never gives a number twice, whatever kills the process between."""

import threading
from pathlib import Path

from space.host import files

_RESERVED_AHEAD = 64
"""Numbers taken from the file at once: one fsync for so many, and at most so many lost at a crash."""


class Counter:
    """Gives 1 to `last`, then 1 again. Its file holds a number that nobody has been given yet; it is moved ahead first.

    ValueError for a file that holds something else.
    """

    def __init__(self, file: Path, *, last: int) -> None:
        self._file, self._last = file, last
        self._lock = threading.Lock()
        self._next = self._reserved = self._read()

    def _read(self) -> int:
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            return 1
        number = int(text)
        if not 1 <= number <= self._last:
            raise ValueError(f"{self._file} holds {number}, not a number from 1 to {self._last}")
        return number

    def take(self) -> int:
        """Return a number that was not given before, also by an earlier process. Now and then it waits for an fsync."""
        with self._lock:
            if self._next == self._reserved:
                end = self._next + _RESERVED_AHEAD
                self._reserved = 1 if end > self._last else end
                files.write_atomic(self._file, f"{self._reserved}\n")
            number = self._next
            self._next = 1 if number == self._last else number + 1
            return number
