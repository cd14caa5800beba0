"""Builds a template in a process of its own, to be cut off from the network or killed.

    python -m tests.support.build_process DATA_DIR INSTANCE NAME DISK_MIB

The agent's source is taken from DATA_DIR/code. Prints the last line of the build as JSON, or the error on standard
error.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from space.image import build
from space.layout import Layout
from space.wire.templates import BuildTemplate

VMM = "qemu 7.2.22 tcg"


async def main(data_dir: str, instance: str, name: str, disk_mib: str) -> None:
    """Build and print the end."""
    layout = Layout(Path(data_dir), instance, 0x7000_0000)
    wish = BuildTemplate(name=name, disk_mib=int(disk_mib))
    last = None
    async with contextlib.aclosing(build.build(layout, wish, code_dir=layout.data_dir / "code", vmm=VMM)) as lines:
        async for line in lines:
            last = line
    assert last is not None
    sys.stdout.write(last.model_dump_json())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
