"""Where the bytes of a file lie on its file system, by FIEMAP (Linux, Documentation/filesystems/fiemap.rst).

Two files of one file system that have the same extent share those bytes: a reflink, not yet written to. That says so
without reading them.
"""

import dataclasses
import fcntl
import struct
from collections.abc import Iterable, Iterator

_FS_IOC_FIEMAP = 0xC020660B
_SYNC = 0x1
_LAST = 0x1
_UNCLEAR = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""UNKNOWN, DELALLOC, ENCODED, DATA_ENCRYPTED, NOT_ALIGNED, DATA_INLINE, DATA_TAIL, UNWRITTEN: the address does not say
what a reader of the file sees."""

_REQUEST = struct.Struct("=QQLLLL")
_EXTENT = struct.Struct("=QQQ16xL12x")
_AT_ONCE = 1024
_END = 2**64 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """Bytes `start` to `end` of a file. `shift` is the distance to their address on the file system.

    None where the address does not tell what they are; two such are never the same.
    """

    start: int
    end: int
    shift: int | None


def extents(descriptor: int) -> list[Extent]:
    """Return a file's extents in order; what is between them is zero. Writes its dirty pages back first.

    Neighbours with one shift are one extent. Raises OSError, EOPNOTSUPP where the file system cannot tell.
    """
    found: list[Extent] = []
    for start, address, length, flags in _ask(descriptor):
        shift = None if flags & _UNCLEAR else address - start
        last = found[-1] if found else None
        if last is not None and shift is not None and (last.end, last.shift) == (start, shift):
            found[-1] = Extent(last.start, start + length, shift)
        else:
            found.append(Extent(start, start + length, shift))
    return found


def _ask(descriptor: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, address, length, flags) of each extent."""
    start, flags = 0, 0
    while not flags & _LAST:
        header = _REQUEST.pack(start, _END - start, _SYNC, 0, _AT_ONCE, 0)
        answer = bytearray(header + bytes(_EXTENT.size * _AT_ONCE))
        fcntl.ioctl(descriptor, _FS_IOC_FIEMAP, answer)
        mapped = _REQUEST.unpack_from(answer)[3]
        if not mapped:
            return
        for start, address, length, flags in _EXTENT.iter_unpack(
            memoryview(answer)[_REQUEST.size : _REQUEST.size + mapped * _EXTENT.size]
        ):
            yield start, address, length, flags
            start += length  # noqa: PLW2901 - where the next question begins


def differing(ours: Iterable[Extent], its: Iterable[Extent]) -> Iterator[tuple[int, int]]:
    """Yield the ranges [start, end), in order, in which two files do not have the same extents or the same holes."""
    left, right = _Cursor(ours), _Cursor(its)
    at = 0
    while at < _END:
        end = min(left.until(at), right.until(at))
        mine, other = left.shift(at), right.shift(at)
        if mine != other or mine is None:
            yield at, end
        at = end


class _Cursor:
    """Walks along a file's extents. `_HOLE` is the shift of a hole."""

    def __init__(self, found: Iterable[Extent]) -> None:
        self._rest = iter(found)
        self._next: Extent | None = next(self._rest, None)

    def until(self, at: int) -> int:
        """Return where what lies at `at` ends; `at` never goes back."""
        while self._next is not None and self._next.end <= at:
            self._next = next(self._rest, None)
        if self._next is None:
            return _END
        return self._next.end if self._next.start <= at else self._next.start

    def shift(self, at: int) -> int | None:
        """Return the shift at `at`, for which `until` was asked."""
        return self._next.shift if self._next is not None and self._next.start <= at else _HOLE


_HOLE = -(2**65)
