"""A worker's stand-in that is killed: boots a VM, prints its identity as JSON, and waits for ever.

Run with the parameters of the VM as JSON in argv.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.support.vmm import LAYOUT, open_tap

from space.model.ids import SandboxId
from space.vmm.driver import BootSpec
from space.vmm.qemu import open_driver


async def main() -> None:
    """Boot and wait."""
    told = json.loads(sys.argv[1])
    driver = await open_driver(LAYOUT.instance, LAYOUT.vm_uid(0), told["accelerator"])
    tap = open_tap(Path(told["netns"]))
    spec = BootSpec(
        sandbox=SandboxId(told["sandbox"]),
        vm_dir=Path(told["vm_dir"]),
        disk=Path(told["disk"]),
        memory=Path(told["memory"]),
        kernel=Path(told["kernel"]),
        initrd=Path(told["initrd"]),
        uid=told["uid"],
        vcpus=told["vcpus"],
        memory_mib=told["memory_mib"],
        tap_fd=tap,
    )
    vm = await driver.boot(spec)
    os.close(tap)
    print(json.dumps({"pid": vm.ref.pid, "start_time": vm.ref.start_time}), flush=True)  # noqa: T201 - what the test reads
    await asyncio.Event().wait()


asyncio.run(main())
