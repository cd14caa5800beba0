"""Choose the accelerator by booting a guest: that `/dev/kvm` exists, opens and answers does not mean that it works.

A host that is itself a VM can offer a KVM which runs only guests built for it: an ordinary kernel then spins without an
error. So the real kernel is started with a time limit, and counts as working when it speaks from 64-bit mode. The
verdict is kept for this boot of the host and this QEMU.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
from pathlib import Path

from space.host import files
from space.host.process import boot_id
from space.layout import Layout
from space.model.errors import InvalidArgument
from space.model.ids import SandboxId, new_id
from space.settings import DriverChoice
from space.telemetry import logger
from space.vmm.driver import BootSpec, Driver, Vm, VmmError, VmStatus
from space.vmm.qemu import QUIET, VERBOSE, installed_version, open_driver
from space.vmm.qemu_command import KVM_DEVICE

_LIMIT_S = 3.0
_POLL_S = 0.02
_MEMORY_MIB = 128
_DISK_BYTES = 1 << 20
_SIGN_OF_LIFE = "Linux version"
"""The kernel's first line; a kernel that hangs before prints at most its loader's words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Whether KVM runs an ordinary guest on this host, and if not, why."""

    works: bool
    reason: str


async def choose(layout: Layout, setting: DriverChoice, kernel: Path, initrd: Path) -> Driver:
    """Return the driver that a setting means on this host, booting a guest to find out where needed (up to 3 s).

    Raises InvalidArgument when `qemu-kvm` is wanted and does not work, Unavailable when QEMU is not installed.
    """
    uid = layout.vm_uid(0)
    if setting == "qemu-tcg":
        return await open_driver(layout.instance, uid, "tcg", console_level=QUIET)
    verdict = await kvm_verdict(layout, kernel, initrd)
    logger().info("kvm_probed", works=verdict.works, reason=verdict.reason)
    if verdict.works:
        return await open_driver(layout.instance, uid, "kvm", console_level=QUIET)
    if setting == "qemu-kvm":
        raise InvalidArgument(
            f"SPACE_DRIVER is qemu-kvm, but KVM does not run guests on this host: {verdict.reason}. Enable "
            "virtualisation (firmware setting, or nested virtualisation of the cloud machine), or set it to auto or "
            "qemu-tcg for software emulation."
        )
    return await open_driver(layout.instance, uid, "tcg", console_level=QUIET)


async def kvm_verdict(layout: Layout, kernel: Path, initrd: Path) -> Verdict:
    """Return whether KVM works here, from the record of this boot or by booting a guest."""
    if not KVM_DEVICE.exists():
        return Verdict(False, f"there is no {KVM_DEVICE}")
    key = {"boot_id": boot_id(), "qemu": await installed_version()}
    record = layout.run_dir / "kvm-probe.json"
    known = _read(record, key)
    if known is not None:
        return known
    verdict = await boot_verdict(layout, "kvm", kernel, initrd)
    for folder in (layout.run_dir.parent, layout.run_dir):
        files.make_dir(folder, mode=0o711)
    files.write_atomic(record, json.dumps(key | dataclasses.asdict(verdict)))
    return verdict


def _read(record: Path, key: dict[str, str]) -> Verdict | None:
    try:
        kept = json.loads(record.read_text())
        if {name: kept[name] for name in key} != key:
            return None
        return Verdict(bool(kept["works"]), str(kept["reason"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


async def boot_verdict(layout: Layout, accelerator: str, kernel: Path, initrd: Path) -> Verdict:
    """Boot a guest without disk and network worth the name, and tell whether its kernel spoke within 3 s."""
    driver = await open_driver(layout.instance, layout.vm_uid(0), accelerator, console_level=VERBOSE)
    folder = layout.disk_area / "kvm-probe"  # not below /run, where device nodes may be dead
    shutil.rmtree(folder, ignore_errors=True)
    files.make_dir(folder, mode=0o711)
    disk = folder / "disk"
    disk.touch(0o600)
    os.truncate(disk, _DISK_BYTES)
    spec = BootSpec(
        sandbox=SandboxId(new_id()),
        vm_dir=folder / "vm",
        disk=disk,
        memory=folder / "mem",
        kernel=kernel,
        initrd=initrd,
        uid=layout.vm_uid(0),
        vcpus=1,
        memory_mib=_MEMORY_MIB,
        tap_fd=None,
    )
    try:
        vm = await driver.boot(spec)
    except VmmError as error:
        return Verdict(False, str(error))
    else:
        try:
            return await _first_words(vm)
        finally:
            await vm.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _first_words(vm: Vm) -> Verdict:
    console = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LIMIT_S):
            while vm.status is not VmStatus.GONE:
                console = await vm.console()
                if _SIGN_OF_LIFE in console:
                    return Verdict(True, "a guest booted")
                await asyncio.sleep(_POLL_S)
            ended = await vm.wait()
            return Verdict(False, ended.reason)
    last = console.strip().splitlines()[-1:]
    return Verdict(False, f"a guest did not start within {_LIMIT_S:g} s; its last words: {last or 'none'}")
