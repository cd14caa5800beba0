"""Whether a VM may start: RAM that was admitted, and room on the memory area for every page it may ever touch.

A page of a shared mapping that cannot be allocated kills the VMM with SIGBUS, so room is promised before a VM starts.
Spares and the hot memory of suspended sandboxes are given up when somebody needs their place.
"""

import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable

from space.disk import btrfs
from space.disk import frozen as storage
from space.disk.frozen import Frozen
from space.host.room import free_bytes
from space.layout import Layout
from space.model.errors import NoCapacity
from space.worker.records import Entry, VmRecord

OVERHEAD_MIB = 96
"""What a VMM needs beside its guest's memory: measured 55 MB under emulation (translated code included), rounded up."""
_MIB = 1024**2
_RESERVE_BYTES = 256 * _MIB
"""Of the memory area: btrfs's metadata, and pages on their way to the disk while their old room is taken."""

_IN_USE_S = 60.0
"""A template that was looked for this short a time ago may be about to be cloned."""

_HOLDS_NOTHING = {"failed", "suspended"}


class Admission:
    """The memory of a worker. `entries` and `spares` return what there is now; `evict` ends spares for so many MiB."""

    def __init__(
        self,
        layout: Layout,
        memory_mib: int,
        *,
        entries: Callable[[], Iterable[Entry]],
        spares: Callable[[], Iterable[VmRecord]],
        evict: Callable[[int], Awaitable[None]],
    ) -> None:
        self._layout, self.memory_mib = layout, memory_mib
        self._entries, self._spares, self._evict = entries, spares, evict
        self._pledged: set[str] = set()
        self._reserved: dict[str, int] = {}

    @property
    def free_mib(self) -> int:
        """RAM that sandboxes may still take, overhead included. Spares do not count: they give way."""
        taken = sum(e.memory_mib + OVERHEAD_MIB for e in self._entries() if self._holds(e))
        return self.memory_mib - taken - sum(mib + OVERHEAD_MIB for mib in self._reserved.values())

    @contextlib.contextmanager
    def pledged(self, sandbox: str) -> Generator[None]:
        """Count a suspended sandbox as if it ran, from before its restore is checked until it is over."""
        self._pledged.add(sandbox)
        try:
            yield
        finally:
            self._pledged.discard(sandbox)

    @contextlib.asynccontextmanager
    async def reserved(self, name: str, memory_mib: int) -> AsyncGenerator[None]:
        """Count a machine that is no sandbox's, one after another under this name. Raises NoCapacity."""
        self._reserved[name] = memory_mib
        try:
            await self.check(memory_mib)
            yield
        finally:
            del self._reserved[name]

    def _holds(self, entry: Entry) -> bool:
        return entry.state not in _HOLDS_NOTHING or entry.sandbox in self._pledged

    async def check(self, memory_mib: int) -> None:
        """Raise NoCapacity unless the VM of an entry that is counted already may start; what can give way does."""
        if self.free_mib < 0:
            left = max(0, self.free_mib + memory_mib)
            raise NoCapacity(
                f"The host has {left} MiB of memory left for sandboxes and this one wants {memory_mib}. "
                "Delete or suspend some, ask for less, or raise SPACE_MEMORY_GIB."
            )
        if not self.fits(0):
            await self._evict(0)
        if self._has_place(0):
            return
        await btrfs.commit(self._layout.memory_area)
        for frozen in self._hot():
            if self._has_place(0):
                return
            frozen.hot_memory.unlink(missing_ok=True)
            await btrfs.commit(self._layout.memory_area)
        if not self._has_place(0):
            raise NoCapacity("The host's memory area is full. Delete or suspend some sandboxes, and try again.")

    def fits(self, memory_mib: int) -> bool:
        """Tell whether a VM of this size could start beside sandboxes and spares, none of which gives way."""
        spares = sum(record.memory_mib + OVERHEAD_MIB for record in self._spares())
        return self.free_mib - spares >= memory_mib and self._has_place(memory_mib)

    def _has_place(self, memory_mib: int) -> bool:
        """Tell whether the memory area has room for all that running VMs may still touch, and this much more."""
        records = [e.vm for e in self._entries() if e.vm is not None and self._holds(e)]
        unborn = sum(e.memory_mib for e in self._entries() if e.vm is None and self._holds(e))
        unborn += sum(self._reserved.values())
        promised = sum(self._untouched(record) for record in (*records, *self._spares()))
        need = promised + (unborn + memory_mib) * _MIB + _RESERVE_BYTES
        return free_bytes(self._layout.memory_area) >= need

    def _untouched(self, record: VmRecord) -> int:
        whole = record.memory_mib * _MIB
        try:
            return max(0, whole - 512 * self._layout.memory_file(record.vm).stat().st_blocks)
        except FileNotFoundError:
            return whole

    def _hot(self) -> list[Frozen]:
        """Return frozen VMs whose memory is stored as well: clones of them only begin with a copy then.

        The longest suspended sandboxes first, then templates, those first that nobody has cloned for longest.
        """
        folder = self._layout.memory_area / "frozen"
        suspended = sorted((path.stat().st_mtime, path) for path in folder.glob("s-*"))
        templates = sorted((path.stat().st_atime, path) for path in folder.glob("t-*"))
        unused = [(used_at, path) for used_at, path in templates if used_at < time.time() - _IN_USE_S]
        found = [Frozen(self._layout, path.name) for _, path in (*suspended, *unused)]
        return [frozen for frozen in found if (m := storage.read(frozen)) is not None and m.digests is not None]
