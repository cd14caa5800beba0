"""Programs of a build: they end with the process that runs them, however that ends."""

import asyncio
import secrets
import signal
import subprocess
import sys
from pathlib import Path

from tests.support import build_cache

_RUN = """
import asyncio, sys
from space.image.work import stream
asyncio.run(stream(print, "sh", "-c", f"sleep {sys.argv[1]} & echo up; wait", timeout_s=600))
"""


def _alive(argument: str) -> bool:
    return any(argument in line for line in _command_lines())


def _command_lines() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


async def test_a_program_and_its_children_die_with_us_even_by_sigkill() -> None:
    """They write nothing, so that no broken pipe ends them."""
    argument = f"1000.{secrets.randbelow(10**9):09}"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", _RUN, argument], cwd=build_cache.ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "up\n"
    assert f"sleep {argument}" in " ".join(_command_lines())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    async with asyncio.timeout(10):
        while _alive(argument):
            await asyncio.sleep(0.02)
