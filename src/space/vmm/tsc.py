"""The host's TSC rate, measured: a guest under software emulation sees the host's counter.

The kernel keeps the figure to itself, and a guest that measures it against an emulated timer gets it wrong now and then
and hangs; so it is told.
"""

import asyncio
import ctypes
import mmap
import time

from space.vmm.driver import VmmError

_MEASURE_S = 0.2
"""Enough for 0.005 %."""

# rdtsc; shl rdx, 32; or rax, rdx; ret
_RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")


async def measure_khz() -> int:
    """Return the rate of the TSC in kHz; takes 0.2 s. Raises VmmError where the rate makes no sense."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(_RDTSC)
    anchor = ctypes.c_char.from_buffer(page)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(anchor))

    def sample() -> tuple[int, int]:
        """Return (ns, ticks) taken together: of five tries the one that was interrupted least."""
        tries = []
        for _ in range(5):
            before = time.monotonic_ns()
            ticks = int(read())
            after = time.monotonic_ns()
            tries.append((after - before, (before + after) // 2, ticks))
        _, at, ticks = min(tries)
        return at, ticks

    first_ns, first = sample()
    await asyncio.sleep(_MEASURE_S)
    last_ns, last = sample()
    khz = round((last - first) * 1_000_000 / (last_ns - first_ns))
    if not 100_000 <= khz <= 20_000_000:
        raise VmmError(f"the TSC seems to run at {khz} kHz: it does not count time on this host")
    return khz
