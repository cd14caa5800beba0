"""QEMU's command line and its files: a microvm with a disk, a network device, a serial console, entropy, and no more.

No network back end but the inherited tap, no monitor but the inherited socket, no firmware but the small ones of this
machine type, no defaults, no user configuration. What broke without a flag: docs/decisions/0010-qemu-microvm.md.
"""

import dataclasses
from pathlib import Path

from space.vmm.driver import GUEST_MAC, BootSpec

PROGRAM = Path("/usr/bin/qemu-system-x86_64")
KVM_DEVICE = Path("/dev/kvm")

# the VM's own files, as QEMU sees them
DISK, MEMORY, KERNEL, INITRD = "/vm/disk", "/vm/mem", "/vm/kernel", "/vm/initrd"
CONSOLE = "console"
CONSOLE_BYTES = 65536

_TCG_MODULE = "qemu/accel-tcg-x86_64.so"
"""Where a distribution builds the accelerators as modules."""
_LIBRARY_DIRS = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib"))
_FIRMWARE = tuple(Path("/usr/share/qemu") / name for name in ("bios-microvm.bin", "linuxboot_dma.bin", "pvh.bin"))
"""The machine's, and the loaders of a bzImage and of an uncompressed kernel."""

_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
_NO_SELF_TESTS = "cryptomgr.notests"
"""The kernel's cryptography tests itself at boot: 0.2 s under emulation."""
_TRANSLATION_CACHE_MIB = 64
MEMORY_OVERHEAD_MIB = 256
"""Beside the guest's memory: QEMU itself 55 MiB, translated code 64 MiB, page cache of the disk in the rest."""


@dataclasses.dataclass(frozen=True, slots=True)
class Accelerator:
    """How guest code is run. `tsc_khz` is the host's TSC rate, needed by TCG alone."""

    name: str
    tsc_khz: int = 0

    @property
    def cpu(self) -> str:
        """The CPU model. Nested virtualisation is off: it widens what a guest can reach in the host.

        Without `erms` and `fsrm` the guest clears and copies memory by words: emulated byte by byte it takes twice as
        long.
        """
        return "host,vmx=off,svm=off" if self.name == "kvm" else "max,erms=off,fsrm=off"

    def qemu_flags(self) -> tuple[str, ...]:
        """Return the flags of QEMU."""
        how = "kvm" if self.name == "kvm" else f"tcg,thread=multi,tb-size={_TRANSLATION_CACHE_MIB}"
        return ("-accel", how, "-cpu", self.cpu)

    def kernel_flags(self) -> tuple[str, ...]:
        """Return what the guest's kernel is told.

        Under TCG the guest sees the host's TSC; measuring it against an emulated timer failed in one boot of ten. And
        programs lie at the same addresses each time: translated code is found by address, so that with random ones a
        program is translated anew at each start, which takes three times as long (docs/decisions/0010).
        """
        if self.name == "kvm":
            return ()
        return ("tsc=reliable", f"tsc_early_khz={self.tsc_khz}", "no_timer_check", "clocksource=tsc", "norandmaps")


def program_files() -> tuple[Path, ...]:
    """Return QEMU's own files apart from its libraries: those of the usual ones that exist here."""
    modules = (folder / _TCG_MODULE for folder in _LIBRARY_DIRS)
    return tuple(path for path in (PROGRAM, *modules, *_FIRMWARE) if path.exists())


def kernel_command_line(accelerator: Accelerator, log_level: int) -> str:
    """Return the guest kernel's parameters. A panic resets at once, and a reset ends the VM: nothing hangs."""
    fixed = ("console=ttyS0", f"loglevel={log_level}", "panic=-1", "reboot=t", "random.trust_cpu=on", _NO_SELF_TESTS)
    return " ".join((*fixed, *accelerator.kernel_flags()))


def argv(
    spec: BootSpec, accelerator: Accelerator, *, name: str, qmp_fd: int, incoming: bool, log_level: int
) -> tuple[str, ...]:
    """Return QEMU's command line.

    `incoming` waits for a device state instead of booting; all else must be as it was when the state was saved.
    `log_level` is the kernel's for its console (4: warnings).
    """
    network = () if spec.tap_fd is None else (
        "-netdev", f"tap,id=n0,fd={spec.tap_fd}",
        "-device", f"virtio-net-device,netdev=n0,mac={GUEST_MAC}",
    )  # fmt: skip
    return (
        str(PROGRAM),
        "-name", f"guest={name}",
        "-M", "microvm,acpi=on,rtc=on,memory-backend=ram",
        *accelerator.qemu_flags(),
        "-smp", str(spec.vcpus),
        "-m", f"{spec.memory_mib}M",
        # not in core dumps, never merged with equal pages of a neighbour
        "-object", f"memory-backend-file,id=ram,size={spec.memory_mib}M,mem-path={MEMORY},share=on,dump=off,merge=off",
        "-nodefaults", "-no-user-config", "-display", "none",
        # a guest that ends leaves QEMU stopped, so that its console can still be read; the driver then ends QEMU
        "-action", "reboot=shutdown,shutdown=pause",
        "-chardev", f"ringbuf,id={CONSOLE},size={CONSOLE_BYTES}", "-serial", f"chardev:{CONSOLE}",
        "-chardev", f"socket,id=qmp,fd={qmp_fd},server=on,wait=off", "-mon", "chardev=qmp,mode=control",
        "-kernel", KERNEL, "-initrd", INITRD, "-append", kernel_command_line(accelerator, log_level),
        # a write that fails (the host is full) stops the VM; the guest never sees an error that room would cure
        "-drive", f"if=none,id=d0,file={DISK},format=raw,cache=unsafe,discard=unmap,werror=stop,rerror=report",
        "-device", "virtio-blk-device,drive=d0",
        *network,
        "-object", "rng-builtin,id=rng0", "-device", "virtio-rng-device,rng=rng0,max-bytes=4096,period=100",
        "-sandbox", _SANDBOX,
        *(("-incoming", "defer") if incoming else ()),
    )  # fmt: skip
