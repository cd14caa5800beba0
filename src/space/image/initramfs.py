"""The initramfs: the agent as `/init`, and the kernel modules it loads before it can see a disk.

It is not compressed: a loader copies it into the guest's memory in any case, and unpacking costs far more than copying
where the CPU is emulated.
"""

import asyncio
import hashlib
import tempfile
from pathlib import Path

from space.host import files
from space.image import cpio
from space.image.agent import Agent
from space.image.kernel import Kernel
from space.layout import Layout


def contents(agent: bytes, modules: list[tuple[str, bytes]]) -> bytes:
    """Return the archive for an agent binary and modules (file name, bytes) in loading order.

    `/modules/order` names them one a line. `/dev/console` is there for the messages of an agent that has not mounted
    /dev yet; the kernel opens it before it starts `/init`.
    """
    return cpio.archive(
        [
            cpio.folder("dev"),
            cpio.character_device("dev/console", 5, 1),
            cpio.folder("modules"),
            *(cpio.file(f"modules/{name}", content) for name, content in modules),
            cpio.file("modules/order", "".join(f"{name}\n" for name, _ in modules).encode()),
            cpio.file("init", agent, 0o755),
        ]
    )


async def obtain(layout: Layout, kernel: Kernel, agent: Agent) -> Path:
    """Return the initramfs of a kernel and an agent, writing it where there is none yet."""
    digest = hashlib.sha256(f"{kernel.digest} {agent.digest}".encode()).hexdigest()
    path = kernel.vmlinuz.parent / f"initrd-{digest[:16]}"
    if not path.is_file():
        await asyncio.to_thread(_write, path, kernel, agent, layout.disk_area)
    return path


def _write(path: Path, kernel: Kernel, agent: Agent, area: Path) -> None:
    modules = [(module.name, module.read_bytes()) for module in kernel.modules]
    with tempfile.TemporaryDirectory(dir=area, prefix="tmp-initrd-") as name:
        fresh = Path(name) / "initrd"
        fresh.write_bytes(contents(agent.binary.read_bytes(), modules))
        fresh.chmod(0o644)
        files.sync_file(fresh)
        fresh.rename(path)
    files.sync_dir(path.parent)
