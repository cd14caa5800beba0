"""What a file holds, as digests of its chunks: two of one content have equal tables, whatever their holes.

A chunk of zeros has no digest. The digest of the whole is that of its table. Where a file shares its blocks with one
whose table is known, those chunks need no reading (see `host/extents.py`).
"""

import dataclasses
import functools
import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from space.host.extents import Extent, differing, extents

CHUNK_BYTES = 64 * 1024
_PIECE_BYTES = 16 * CHUNK_BYTES
_DIGEST_BYTES = 32
_ENTRY_BYTES = 8 + _DIGEST_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A file's size and the SHA-256 of each chunk of it that is not zero, by number; the last may be short."""

    size_bytes: int
    digests: dict[int, bytes]

    def encode(self) -> bytes:
        """Return it as bytes, the same for the same content."""
        head = self.size_bytes.to_bytes(8, "big") + len(self.digests).to_bytes(8, "big")
        return head + b"".join(number.to_bytes(8, "big") + self.digests[number] for number in sorted(self.digests))

    @property
    def digest(self) -> str:
        """The digest of the whole content, hexadecimal."""
        return hashlib.sha256(self.encode()).hexdigest()


def decode(encoded: bytes, at: int) -> tuple[Table, int]:
    """Return the table that begins at `at`, and where it ends. Raises ValueError; whether it is right, only its digest
    tells."""
    size, count = (int.from_bytes(encoded[at + skip : at + skip + 8], "big") for skip in (0, 8))
    begin, end = at + 16, at + 16 + count * _ENTRY_BYTES
    if end > len(encoded):
        raise ValueError("a table of digests is cut short")
    entries = (encoded[place : place + _ENTRY_BYTES] for place in range(begin, end, _ENTRY_BYTES))
    return Table(size, {int.from_bytes(entry[:8], "big"): entry[8:] for entry in entries}), end


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """A file whose content is known: its table, and where its bytes lie."""

    table: Table
    extents: list[Extent]


NOTHING = Known(Table(0, {}), [])
"""Zeros without end."""


def known(path: Path, table: Table) -> Known:
    """Return a file of which the table was checked; raises OSError."""
    with path.open("rb") as file:
        return Known(table, extents(file.fileno()))


def unshared(ours: list[Extent], base: Known, size_bytes: int) -> set[int]:
    """Return the numbers of the chunks in which a file of this size shares not all its blocks with `base`."""
    found: set[int] = set()
    for start, end in differing(ours, base.extents):
        found.update(range(start // CHUNK_BYTES, -(-min(end, size_bytes) // CHUNK_BYTES)))
    return found


def take(path: Path, bases: Iterable[Known] = ()) -> tuple[Table, set[int]]:
    """Return a file's table, and the numbers of the chunks that had to be read for it. Blocks; raises OSError.

    Those that it shares with one of `bases` are taken from that one's table.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        ours = extents(file.fileno())
        digests: dict[int, bytes] = {}
        own = unshared(ours, NOTHING, size)
        for base in bases:
            rest = unshared(ours, base, size)
            shared = own - rest
            digests.update((number, base.table.digests[number]) for number in shared if number in base.table.digests)
            own &= rest
        for number, chunk in read(file.fileno(), own):
            if (digest := _digest(chunk)) is not None:
                digests[number] = digest
    return Table(size, digests), own


def damaged(path: Path, table: Table, bases: Iterable[Known] = ()) -> bool:
    """Tell whether a file is not what its table says. Blocks; raises OSError.

    What it shares with one of `bases` is taken from that one's table, not read.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != table.size_bytes:
            return True
        ours = extents(file.fileno())
        suspect = unshared(ours, NOTHING, size) | table.digests.keys()
        for base in bases:
            suspect &= unshared(ours, base, size) | difference(table, base.table)
        return not _match(file.fileno(), table, suspect)


def difference(one: Table, other: Table) -> set[int]:
    """Return the numbers of the chunks in which two contents differ."""
    return {number for number, _ in one.digests.items() ^ other.digests.items()}


def copy(source: Path, target: int, numbers: set[int]) -> None:
    """Write these chunks of `source` to an open file that is as long, zeros too. Blocks; raises OSError."""
    with source.open("rb", buffering=0) as file:
        for number, chunk in read(file.fileno(), numbers):
            os.pwrite(target, chunk, number * CHUNK_BYTES)


def damaged_on_disk(path: Path, table: Table) -> bool:
    """As `damaged`, by reading all of it from the disk itself."""
    if path.stat().st_size != table.size_bytes:
        return True
    return not reread(path, table, occupied(path) | table.digests.keys())


def occupied(path: Path) -> set[int]:
    """Return the numbers of the chunks that a file has blocks for. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        return unshared(extents(file.fileno()), NOTHING, os.fstat(file.fileno()).st_size)


def reread(path: Path, table: Table, numbers: set[int]) -> bool:
    """Read these chunks from the disk itself, past the page cache, and tell whether they are what `table` says."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        return _match(descriptor, table, numbers)
    finally:
        os.close(descriptor)


def _match(descriptor: int, table: Table, numbers: set[int]) -> bool:
    return all(_digest(chunk) == table.digests.get(number) for number, chunk in read(descriptor, numbers))


def read(descriptor: int, numbers: set[int]) -> Iterator[tuple[int, memoryview]]:
    """Yield each of these chunks; it is valid until the next. What lies beyond the file's end is empty."""
    with mmap.mmap(-1, _PIECE_BYTES) as aligned, memoryview(aligned) as buffer:  # O_DIRECT wants whole pages
        for first, count in _runs(sorted(numbers)):
            filled = 0
            wanted = count * CHUNK_BYTES
            while filled < wanted:
                got = os.preadv(descriptor, [buffer[filled:wanted]], first * CHUNK_BYTES + filled)
                filled += got
                if got == 0 or filled % mmap.PAGESIZE:
                    break
            for place in range(count):
                with buffer[min(filled, place * CHUNK_BYTES) : min(filled, (place + 1) * CHUNK_BYTES)] as chunk:
                    yield first + place, chunk


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of neighbours in a sorted list, at most a piece at once."""
    first = count = 0
    for number in numbers:
        if count and number == first + count and count < _PIECE_BYTES // CHUNK_BYTES:
            count += 1
            continue
        if count:
            yield first, count
        first, count = number, 1
    if count:
        yield first, count


def _digest(chunk: memoryview) -> bytes | None:
    """Return the SHA-256 of a chunk; None where it is zero."""
    found = hashlib.sha256(chunk).digest()
    return None if found == _of_zeros(len(chunk)) else found


@functools.cache
def _of_zeros(length: int) -> bytes:
    return hashlib.sha256(bytes(length)).digest()
