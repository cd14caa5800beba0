"""How the worker talks to a VMM, whichever it is: one protocol that fits Firecracker and QEMU's microvm.

A VM outlives the process that started it: it has a session of its own, and everything needed to take it over again (its
control socket, its log) lies in `vm_dir` or hangs on the VMM itself. What comes back from a VMM is judged like anything
a guest says: bounded, with a deadline on each answer.
"""

import dataclasses
import enum
from pathlib import Path
from typing import Protocol

from space.host.process import ProcessRef
from space.model.ids import SandboxId

GUEST_MAC = "06:00:ac:10:00:02"
"""The same in every guest, like its address, so that a snapshot fits any slot."""


class VmmError(Exception):
    """A VMM did not start, refused, or gave no answer in time. For our log; translate before it reaches a user."""


@dataclasses.dataclass(frozen=True, slots=True)
class BootSpec:
    """What a VM is started from. `disk`, `memory`, `kernel` and `initrd` lie in folders anyone may pass (0711)."""

    sandbox: SandboxId
    vm_dir: Path
    """The VMM's folder: root's, made when missing (its parent exists), 0711. Control socket and log are in it."""

    disk: Path
    """Raw image of the root filesystem, this VM's own; handed to `uid`, 0600."""

    memory: Path
    """The guest's memory, mapped shared; made sparse when missing (its folder exists), handed to `uid`, 0600. Its file
    system must have room for all of it: a page that cannot be allocated kills the VMM with SIGBUS."""

    kernel: Path
    initrd: Path
    uid: int
    """User and group id of the VMM, no other VM's."""

    vcpus: int
    memory_mib: int
    tap_fd: int | None
    """The guest's network device, opened with IFF_TAP | IFF_NO_PI | IFF_VNET_HDR; the caller closes its own copy after
    `boot`. None: no network device (the boot probe)."""


class VmStatus(enum.StrEnum):
    """What the VMM does with the guest now."""

    RUNNING = "running"
    PAUSED = "paused"
    DISK_FULL = "disk_full"
    """Stopped because a write to the disk found no room on the host; `resume` repeats the write."""
    DISK_ERROR = "disk_error"
    """Stopped because a write to the disk failed otherwise; `resume` repeats it."""
    GONE = "gone"
    """No control connection any more: the VMM is dead, or has to be killed."""


@dataclasses.dataclass(frozen=True, slots=True)
class VmExit:
    """How a VMM ended. `status` is its exit status, negative for a signal, None when another process was its parent."""

    status: int | None
    reason: str
    """One sentence part for people: "the guest powered off or reset itself", "the VMM was killed by SIGKILL"."""


class Vm(Protocol):
    """A VMM with its guest, ours to control until `release`."""

    @property
    def ref(self) -> ProcessRef:
        """The VMM's own process, not a wrapper's."""

    @property
    def alive(self) -> bool:
        """Whether the VMM has not ended yet."""

    @property
    def status(self) -> VmStatus:
        """What it last told."""

    async def next_status(self, known: VmStatus) -> VmStatus:
        """Wait until the status is another than `known` and return it; after GONE nothing follows."""

    async def wait(self) -> VmExit:
        """Wait for the VMM's end and tell how it came; what the host held for it (its cgroup) is given back."""

    async def ping(self) -> None:
        """Return when the VMM has answered; raises VmmError where it does not in time."""

    async def pause(self) -> None:
        """Stop the vCPUs; memory stays. Pausing twice is one pause. Raises VmmError."""

    async def resume(self) -> None:
        """Let the vCPUs run; also after `disk_full`, when there is room. Raises VmmError."""

    async def save(self, state: Path) -> None:
        """Write the device state of a paused VM to `state` (0600, root's, replaced; not synced).

        Memory and disk are not in it: they are the files the VM was started with, complete once this returns; not
        before, since a VM that was saved already and has not run since is let run for a moment. The VM stays paused
        and may be resumed. Raises VmmError; then there is no `state`.
        """

    async def kill(self) -> None:
        """End the VMM with SIGKILL; returns when it is gone. Twice is once."""

    async def console(self) -> str:
        """Return the end of the guest's serial console (at most 64 KiB, printable); after death what was seen last."""

    def release(self) -> None:
        """Stop watching and leave it alive, for `adopt` by another process."""


class Driver(Protocol):
    """One kind of VMM on this host."""

    @property
    def name(self) -> str:
        """`qemu` or `firecracker`."""

    @property
    def accelerator(self) -> str:
        """`kvm` or `tcg`."""

    @property
    def cpu(self) -> str:
        """What kind of CPU guests see, one word; a snapshot fits only the same kind."""

    @property
    def version(self) -> str:
        """The VMM's own version; a snapshot fits only the version that made it."""

    async def boot(self, spec: BootSpec) -> Vm:
        """Start a VM from its disk; returns as soon as the VMM runs, long before the guest answers. Raises VmmError."""

    async def restore(self, spec: BootSpec, state: Path) -> Vm:
        """Start a VM from `spec.disk`, `spec.memory` and the device state, running. Raises VmmError."""

    async def adopt(self, vm_dir: Path, ref: ProcessRef) -> Vm | None:
        """Take over a VM that another process started; None when it has ended. `vm_dir` is named for the sandbox.

        Raises VmmError where it lives and does not answer: kill it (`host.process.watch`).
        """
