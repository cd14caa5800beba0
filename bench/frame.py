"""The frame of every bench: a SPACE of its own on a data folder that is kept, told apart from what else runs here.

Refuses before it starts anything where disk or memory are short.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import math
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path

from bench import client
from bench.bare import Kit
from tests.support.deployment import Deployment, eventually

from space.cli.output import human_bytes, say
from space.disk import frozen as storage
from space.disk.frozen import Frozen
from space.host.room import free_bytes
from space.host.tasks import first_of
from space.image import catalog
from space.image.catalog import TemplateFiles
from space.layout import Layout
from space.model.ids import TemplateDigest
from space.model.sandbox import DEFAULT_VCPUS
from space.vmm import tsc
from space.vmm.qemu_command import Accelerator
from space.wire.worker import WorkerInfo
from space.wire.worker_client import WorkerClient
from space.worker.admission import OVERHEAD_MIB
from space.worker.shelf import Shape

DATA = Path("/var/lib/space-bench")
RESULTS = Path(__file__).parent / "results"
_GIB = 1024**3
_DISK_GIB = 6
_BESIDE_BYTES = 2 * _GIB
"""What templates are built from, the database, and a reserve."""
_HOST_MIB = 1024
"""Memory that is left to everything else on this machine."""
_FROZEN_S = 120.0


def parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benches share."""
    made = argparse.ArgumentParser(prog=f"scripts/bench {name}", description=about)
    made.add_argument("--data", type=Path, default=DATA, help="data folder, kept between runs (default: %(default)s)")
    made.add_argument("--results", type=Path, default=RESULTS, help="where a folder of figures is made for each run")
    return made


def positive(text: str) -> int:
    """Return a number above zero that was given as an option."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def needed_mib(vms: int, memory_mib: int) -> int:
    """Return what so many VMs of this size may take of the host's memory."""
    return vms * (memory_mib + OVERHEAD_MIB)


def lacking(need_mib: int) -> str | None:
    """Say why VMs that need so much cannot be started on this machine, or return None."""
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    have_mib = int(facts["MemAvailable"].split()[0]) // 1024 - _HOST_MIB
    if need_mib <= have_mib:
        return None
    return f"needs {need_mib} MiB of memory and this machine has {max(0, have_mib)} MiB to spare"


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """A running SPACE, and what is needed to look behind it."""

    space: Deployment
    layout: Layout
    template: TemplateFiles
    accelerator: Accelerator
    worker: WorkerClient
    info: WorkerInfo

    async def frozen(self, memory_mib: int) -> Frozen:
        """Return the template's frozen VM at a size; one that is not there yet is made by asking for a sandbox."""
        name = Shape(self.template.template.digest, DEFAULT_VCPUS, memory_mib).name
        found = Frozen(self.layout, name)
        if not _settled(found):
            say(f"freezing the template at {memory_mib} MiB, once")
            await client.delete(
                self.space, (await client.start(self.space, client.ECHO, memory_mib=memory_mib)).sandbox
            )
            await eventually(lambda: _settled(found), within_s=_FROZEN_S, what=f"{name} frozen")
        return found

    async def kit(self, memory_mib: int) -> Kit:
        """Return what bare VMs of this size are made of."""
        frozen = await self.frozen(memory_mib)
        return Kit(self.layout, self.template, frozen, self.accelerator, DEFAULT_VCPUS, memory_mib)

    async def restart(self, warm_pool: int) -> None:
        """Start SPACE again with so many spares for each size; frozen templates stay."""
        await self.space.stop()
        self.space.settings["SPACE_WARM_POOL"] = str(warm_pool)
        say((await self.space.up()).strip())


def _settled(frozen: Frozen) -> bool:
    manifest = storage.read(frozen)
    return manifest is not None and manifest.digests is not None and frozen.hot_memory.exists()


@contextlib.asynccontextmanager
async def opened(data: Path, *, memory_mib: int, warm_pool: int) -> AsyncGenerator[Bench]:
    """Start SPACE with room for `memory_mib` of VMs and the base template; end it afterwards, the VMs too."""
    memory_gib = math.ceil(memory_mib / 1024)
    _refuse_without_room(data, memory_mib, memory_gib)
    settings = {
        "SPACE_DISK_GIB": str(_DISK_GIB),
        "SPACE_MEMORY_GIB": str(memory_gib),
        "SPACE_SLOT_POOL": "4",
        "SPACE_WARM_POOL": str(warm_pool),
    }
    space = Deployment(data, settings=settings)
    try:
        say((await space.up()).strip())
    except AssertionError as error:  # SPACE has said what to do
        sys.exit(f"error: {error}")
    try:
        say("template base: built the first time (a minute), frozen at each start")
        status, _, problem = await space.cli("template", "build", "base")
        if status:
            sys.exit(problem)
        identity = json.loads((data / "instance.json").read_text())
        layout = Layout(data, identity["instance"], identity["uid_base"])
        digest = TemplateDigest((await client.ask(space, "GET", "/v1/templates/base"))["digest"])
        worker = WorkerClient(layout.worker_sock)
        try:
            info = await worker.info()
            await client.delete_all(space)  # of a run that was killed
            khz = await tsc.measure_khz() if info.accelerator == "tcg" else 0
            how = Accelerator(info.accelerator, khz)
            yield Bench(space, layout, catalog.find(layout, digest), how, worker, info)
        finally:
            await worker.close()
    finally:
        await space.down()
        say(f"{data} is kept, so that the next run is quick; to remove it: rm -r {data} {space.log_file}")


def _refuse_without_room(data: Path, memory_mib: int, memory_gib: int) -> None:
    short = lacking(memory_mib)
    if short is not None:
        sys.exit(f"error: this {short}. End something, or measure less; see --help.")
    there = data if data.exists() else data.parent
    missing = 0 if (data / "disk.img").exists() else _DISK_GIB * _GIB
    need = missing + memory_gib * _GIB * 9 // 8 + _BESIDE_BYTES
    if free_bytes(there) < need:
        sys.exit(
            f"error: {there} has {human_bytes(free_bytes(there))} free and this needs {human_bytes(need)}. "
            "Make room, or give another folder with --data."
        )


def run(work: Coroutine[None, None, bool]) -> None:
    """Run a bench to its end and exit; SIGINT and SIGTERM end what it has started. Exits with 1 where it was False."""

    async def whole() -> bool:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        sys.exit(0 if asyncio.run(whole()) else 1)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    except (client.Refused, ExceptionGroup) as error:
        if (refused := first_of(error, client.Refused)) is None:
            raise
        sys.exit(f"error: {refused}")
