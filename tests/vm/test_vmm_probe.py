"""The accelerator is chosen by what a guest does, never by what the host says it has."""

import json
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.support.vmm import Bench

from space.host import files
from space.host.process import boot_id
from space.layout import Layout
from space.model.errors import InvalidArgument
from space.vmm import probe
from space.vmm.qemu import installed_version
from space.vmm.qemu_command import KVM_DEVICE

_SETUP_SECTORS_OFFSET = 0x1F1  # of a bzImage: Documentation/arch/x86/boot.rst


@pytest.fixture
async def record(bench: Bench) -> AsyncGenerator[Path]:
    """Where the verdict is kept; nothing is there yet."""
    for folder in (bench.layout.run_dir.parent, bench.layout.run_dir):
        files.make_dir(folder, mode=0o711)
    path = bench.layout.run_dir / "kvm-probe.json"
    path.unlink(missing_ok=True)
    yield path
    shutil.rmtree(bench.layout.run_dir)


async def write(record: Path, *, works: bool, boot: str) -> None:
    """Put a verdict there as if it had been found earlier."""
    kept = {"boot_id": boot, "qemu": await installed_version(), "works": works, "reason": "as recorded"}
    record.write_text(json.dumps(kept))


def leftovers(layout: Layout) -> bool:
    """Tell whether a probe left its files."""
    return (layout.disk_area / "kvm-probe").exists()


async def test_a_kernel_that_speaks_is_a_working_accelerator(bench: Bench) -> None:
    """The positive control, on the accelerator that works everywhere."""
    verdict = await probe.boot_verdict(bench.layout, "tcg", bench.template.kernel, bench.template.initrd)
    assert verdict.works
    assert not leftovers(bench.layout)


async def test_a_guest_that_spins_without_an_error_is_not(bench: Bench) -> None:
    """Where KVM runs only guests made for it, an ordinary kernel hangs after its loader: so does this one."""
    image = bytearray(bench.template.kernel.read_bytes())
    entry = (image[_SETUP_SECTORS_OFFSET] + 1) * 512
    image[entry : entry + 2] = b"\xeb\xfe"  # jmp to itself, at the 32-bit entry
    spinning = bench.layout.disk_area / "spinning"
    spinning.write_bytes(image)
    try:
        verdict = await probe.boot_verdict(bench.layout, "tcg", spinning, bench.template.initrd)
    finally:
        spinning.unlink()
    assert not verdict.works
    assert "did not start within 3 s" in verdict.reason
    assert not leftovers(bench.layout)


async def test_the_verdict_is_kept_for_this_boot_of_the_host(bench: Bench, record: Path) -> None:
    """A record of this boot answers without a guest; one of another boot does not."""
    if not KVM_DEVICE.exists():
        pytest.skip("without /dev/kvm there is nothing to find out")
    await write(record, works=False, boot="another")
    found = await probe.kvm_verdict(bench.layout, bench.template.kernel, bench.template.initrd)
    assert found.reason != "as recorded"
    assert json.loads(record.read_text())["boot_id"] == boot_id()
    await write(record, works=not found.works, boot=boot_id())
    kept = await probe.kvm_verdict(bench.layout, bench.template.kernel, bench.template.initrd)
    assert (kept.works, kept.reason) == (not found.works, "as recorded")


async def test_what_is_chosen_follows_setting_and_verdict(bench: Bench, record: Path) -> None:
    """`auto` falls back to emulation; `qemu-kvm` that does not work is an error with a way out."""
    if KVM_DEVICE.exists():
        await write(record, works=False, boot=boot_id())
        chosen = await probe.choose(bench.layout, "auto", bench.template.kernel, bench.template.initrd)
        assert (chosen.name, chosen.accelerator) == ("qemu", "tcg")
    with pytest.raises(InvalidArgument, match="set it to auto"):
        await probe.choose(bench.layout, "qemu-kvm", bench.template.kernel, bench.template.initrd)
