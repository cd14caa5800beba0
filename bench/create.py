"""How long a create takes, beside the floor measured in the same run: `scripts/bench create`.

One client, one sandbox at a time, through the real edge, api, worker and ingress proxy. Each round also boots a bare
QEMU (bench/floor.py), so that both see the same machine in the same minute.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

from bench import floor
from tests.support.deployment import Deployment

from space.cli.output import human_bytes, print_table, say
from space.host.room import free_bytes
from space.image import catalog
from space.layout import Layout
from space.model.ids import TemplateDigest
from space.model.sandbox import DEFAULT_MEMORY_MIB, DEFAULT_VCPUS
from space.vmm.qemu_command import Accelerator
from space.wire.worker import WorkerClient

DATA = Path("/var/lib/space-bench")
"""Kept between runs, so that the template is built once; delete it any time."""

_SETTINGS = {"SPACE_DISK_GIB": "4", "SPACE_MEMORY_GIB": "2"}
NEED_BYTES = 8 * 1024**3
"""Both areas, what templates are built from, the database, and a reserve."""

STEPS = ("create", "first command", "create + first command", "second command", "delete", "bare QEMU boot")


class _Watch:
    """Collects milliseconds by step."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {step: [] for step in STEPS}

    def note(self, step: str, began: float) -> None:
        self.taken[step].append((time.monotonic() - began) * 1000)


async def _round(space: Deployment, watch: _Watch) -> None:
    """Create, run two commands, delete; all as a client."""
    began = time.monotonic()
    sandbox = await space.create()
    watch.note("create", began)
    command = time.monotonic()
    assert await space.run(sandbox, "echo hi") == (0, "hi\n")
    watch.note("first command", command)
    watch.note("create + first command", began)
    command = time.monotonic()
    assert await space.run(sandbox, "echo hi") == (0, "hi\n")
    watch.note("second command", command)
    command = time.monotonic()
    await space.delete(sandbox)
    watch.note("delete", command)


async def _template(space: Deployment) -> TemplateDigest:
    """Return the digest of `base`, built where it is not there yet."""
    status, _, err = await space.cli("template", "build", "base")
    assert status == 0, err
    found = (await space.http.get("/v1/templates/base")).json()
    return TemplateDigest(found["digest"])


async def _accelerator(layout: Layout) -> Accelerator:
    worker = WorkerClient(layout.worker_sock)
    try:
        return await floor.accelerator((await worker.info()).accelerator)
    finally:
        await worker.close()


async def measure(rounds: int) -> dict[str, list[float]]:
    """Start SPACE, take `rounds` measurements of everything after one that is not counted, end SPACE."""
    if not (DATA / "disk.img").exists() and free_bytes(DATA.parent) < NEED_BYTES:
        sys.exit(f"error: {DATA.parent} has {human_bytes(free_bytes(DATA.parent))} free; this needs 8 GiB.")
    space = Deployment(DATA, settings=_SETTINGS)
    watch = _Watch()
    try:
        print((await space.up()).strip())
    except AssertionError as error:  # SPACE has said what to do
        sys.exit(f"error: {error}")
    try:
        identity = json.loads((space.data / "instance.json").read_text())
        layout = Layout(space.data, identity["instance"], identity["uid_base"])
        template = catalog.find(layout, await _template(space))
        how = await _accelerator(layout)
        for number in range(rounds + 1):
            counted = watch if number else _Watch()
            began = await floor.boot_ms(layout, template, how, DEFAULT_VCPUS, DEFAULT_MEMORY_MIB)
            counted.taken["bare QEMU boot"].append(began)
            await _round(space, counted)
            say(f"round {number} of {rounds}" if number else "one round to warm up")
    finally:
        await space.down()
        say(f"{DATA} is kept, so that the next run is quick; to remove it: rm -r {DATA} {space.log_file}")
    return watch.taken


def report(taken: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return median, 99th percentile (the worst, below 100 rounds) and the ratio of medians to the floor's."""
    base = statistics.median(taken["bare QEMU boot"])
    return {
        step: {
            "median_ms": round(statistics.median(values), 1),
            "p99_ms": round(sorted(values)[max(0, -(-99 * len(values) // 100) - 1)], 1),
            "ratio_to_floor": round(statistics.median(values) / base, 2),
            "rounds": len(values),
        }
        for step, values in taken.items()
    }


def main() -> None:
    """Print a table, and JSON where asked."""
    parser = argparse.ArgumentParser(prog="scripts/bench create", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    figures = report(asyncio.run(measure(arguments.rounds)))
    print_table(
        ("step", "median ms", "p99 ms", "x floor"),
        ((step, f["median_ms"], f["p99_ms"], f["ratio_to_floor"]) for step, f in figures.items()),
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
