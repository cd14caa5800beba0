"""The floors of a run: what the VMM, the guest and the disk take by themselves on this machine, now."""

import asyncio
import os
import secrets
import time
from pathlib import Path

from bench import bare
from bench.bare import Kit
from bench.figures import ms_since

_PIECE_BYTES = 1024**2


async def boot_ms(kit: Kit) -> float:
    """Boot a bare VM; return the milliseconds from its reflinks to the output of its first command."""
    async with bare.place(kit.layout) as at:
        began = time.monotonic()
        async with bare.booted(kit, at) as vm:
            await vm.echo()
            return ms_since(began)


async def clone_ms(kit: Kit) -> float:
    """Restore a bare VM from the template's frozen one; return what `boot_ms` does."""
    async with bare.place(kit.layout) as at:
        began = time.monotonic()
        async with bare.cloned(kit, at) as vm:
            await vm.echo()
            return ms_since(began)


async def halt_ms(kit: Kit) -> float:
    """Stop the vCPUs of a bare VM and let them run again; return the milliseconds of both."""
    async with bare.place(kit.layout) as at, bare.cloned(kit, at) as vm:
        await vm.echo()
        return await vm.monitor.halt()


async def write_ms(folder: Path, size_bytes: int) -> float:
    """Write and fsync a new file of so many bytes that no file system can leave out; return the milliseconds."""
    return await asyncio.to_thread(_write, folder / f"raw-{secrets.token_hex(4)}", size_bytes)


def _write(path: Path, size_bytes: int) -> float:
    piece = os.urandom(_PIECE_BYTES)
    try:
        began = time.monotonic()
        with path.open("wb") as file:
            for written in range(0, size_bytes, _PIECE_BYTES):
                file.write(piece[: size_bytes - written])
            file.flush()
            os.fsync(file.fileno())
        return ms_since(began)
    finally:
        path.unlink(missing_ok=True)
