"""The QEMU driver: microvm machines under KVM or software emulation."""

import asyncio
import contextlib
import os
import re
import stat
from pathlib import Path

from space.host import cgroup, command, cpu, files, process
from space.host.daemon import User
from space.host.process import ProcessRef
from space.model.errors import Unavailable
from space.vmm import jail, qmp, tsc
from space.vmm.driver import BootSpec, VmmError, VmStatus
from space.vmm.launch import Launched, Log, launch
from space.vmm.qemu_command import (
    DISK,
    INITRD,
    KERNEL,
    KVM_DEVICE,
    MEMORY,
    MEMORY_OVERHEAD_MIB,
    PROGRAM,
    Accelerator,
    argv,
    program_files,
)
from space.vmm.qemu_vm import QemuVm

QMP_SOCKET = "qmp.sock"
LOG = "vmm.log"
QUIET, VERBOSE = 4, 7
"""Levels of the guest kernel's console: warnings, everything. A character of the emulated serial line costs time."""
_PROCESSES = 128
"""Threads of one QEMU: its vCPUs and at most 64 for disk requests."""

_NULL_DEVICE = Path("/dev/null")
_LAST_BREATH_S = 2.0


class QemuDriver:
    """Implements `driver.Driver`. Made by `open_driver`."""

    name = "qemu"

    def __init__(
        self,
        *,
        instance: str,
        version: str,
        accelerator: Accelerator,
        cpu: str,
        program: tuple[Path, ...],
        in_user_namespace: bool,
        console_level: int,
    ) -> None:
        self.version = version
        self._instance = instance
        self._accelerator = accelerator
        self._cpu = cpu
        self._program = program
        self._in_user_namespace = in_user_namespace
        self._console_level = console_level

    @property
    def accelerator(self) -> str:
        """See `driver.Driver`."""
        return self._accelerator.name

    @property
    def cpu(self) -> str:
        """See `driver.Driver`."""
        return self._cpu

    async def boot(self, spec: BootSpec) -> QemuVm:
        """See `driver.Driver`."""
        return await self._start(spec, None)

    async def restore(self, spec: BootSpec, state: Path) -> QemuVm:
        """See `driver.Driver`."""
        return await self._start(spec, state)

    async def adopt(self, vm_dir: Path, ref: ProcessRef) -> QemuVm | None:
        """See `driver.Driver`."""
        vmm = process.watch(ref)
        if vmm is None:
            return None
        with contextlib.ExitStack() as undo:
            undo.callback(vmm.release)
            try:
                log = Log(vm_dir / LOG, make=False)
                undo.callback(log.close)
                connected = qmp.connect(vm_dir / QMP_SOCKET)
            except OSError as error:
                raise VmmError(f"the VMM lives, but what it is reached by is gone: {error}") from error
            undo.pop_all()
        vm = QemuVm(Launched(vmm, None), connected, log, instance=self._instance, sandbox=vm_dir.name)
        try:
            await vm.greet()
        except BaseException:
            vm.release()
            raise
        return vm

    async def _start(self, spec: BootSpec, state: Path | None) -> QemuVm:
        try:
            await asyncio.to_thread(_prepare, spec)
            cgroup.create(self._instance, spec.sandbox, _limits(spec))
            vm = await self._launch(spec, incoming=state is not None)
        except BaseException as error:
            await cgroup.remove(self._instance, spec.sandbox)
            if isinstance(error, OSError):
                raise VmmError(f"the VM's files could not be prepared: {error}") from error
            raise
        try:
            await vm.greet()
            if state is not None:
                await vm.load(state)
                await vm.resume()
        except VmmError as error:
            raise VmmError(await _autopsy(vm) or str(error)) from error
        except BaseException:
            await vm.kill()
            raise
        return vm

    async def _launch(self, spec: BootSpec, *, incoming: bool) -> QemuVm:
        with contextlib.ExitStack() as undo:
            log = Log(spec.vm_dir / LOG, make=True)
            undo.callback(log.close)
            # our copy of the listening socket is closed again, so that QEMU's end is the end of our connection
            with qmp.listen(spec.vm_dir / QMP_SOCKET) as listening:
                connected = qmp.connect(spec.vm_dir / QMP_SOCKET)
                undo.callback(connected.close)
                fds = (listening.fileno(), *(() if spec.tap_fd is None else (spec.tap_fd,)))
                program = self._argv(spec, listening.fileno(), incoming=incoming)
                settled = self._jail(spec)
                launched = await launch(
                    lambda info, block: jail.argv(
                        settled, program, in_user_namespace=self._in_user_namespace, info_fd=info, block_fd=block
                    ),
                    log=log,
                    pass_fds=fds,
                    settle=lambda pid: cgroup.enter(self._instance, spec.sandbox, pid),
                )
            undo.pop_all()
        return QemuVm(launched, connected, log, instance=self._instance, sandbox=spec.sandbox)

    def _argv(self, spec: BootSpec, qmp_fd: int, *, incoming: bool) -> tuple[str, ...]:
        return argv(
            spec,
            self._accelerator,
            name=f"space-{self._instance}-{spec.sandbox}",
            qmp_fd=qmp_fd,
            incoming=incoming,
            log_level=self._console_level,
        )

    def _jail(self, spec: BootSpec) -> jail.Jail:
        groups, kvm = _kvm_access(spec) if self._accelerator.name == "kvm" else ((), ())
        return jail.Jail(
            user=User(spec.uid, spec.uid, groups),
            program_files=self._program,
            read_only=((spec.kernel, KERNEL), (spec.initrd, INITRD)),
            writable=((spec.disk, DISK), (spec.memory, MEMORY)),
            # QEMU probes its file locks on /dev/null
            devices=((_NULL_DEVICE, str(_NULL_DEVICE)), *kvm),
            file_size_bytes=max(spec.disk.stat().st_size, spec.memory_mib << 20),
        )


async def _autopsy(vm: QemuVm) -> str | None:
    """Make sure that a VM which failed to start is gone; return its reason when it ended by itself."""
    ended = None
    if vm.status is VmStatus.GONE:  # its sockets close a little before it has ended
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_BREATH_S):
                ended = await vm.wait()
    await vm.kill()
    return ended.reason if ended else None


def _prepare(spec: BootSpec) -> None:
    """Make the VMM's folder and its memory, and hand it its files; done by root, the only time it touches them."""
    files.make_dir(spec.vm_dir, mode=0o711)
    size = spec.memory_mib << 20
    for path, flags in ((spec.memory, os.O_CREAT), (spec.disk, 0)):
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
        try:
            os.fchmod(fd, 0o600)
            os.fchown(fd, spec.uid, spec.uid)
            if path is spec.memory and os.fstat(fd).st_size != size:
                os.ftruncate(fd, size)
        finally:
            os.close(fd)


def _kvm_access(spec: BootSpec) -> tuple[tuple[int, ...], tuple[tuple[Path, str], ...]]:
    """Return the groups and the device that let the VM's uid use KVM.

    Distributions give `/dev/kvm` to a group. Where only root may open it, the VM gets a node of its own in its folder,
    as Firecracker's jailer makes one.
    """
    facts = KVM_DEVICE.stat()
    if facts.st_mode & 0o006 == 0o006 or (facts.st_mode & 0o060 == 0o060 and facts.st_gid != 0):
        return (facts.st_gid,), ((KVM_DEVICE, str(KVM_DEVICE)),)
    node = spec.vm_dir / KVM_DEVICE.name
    node.unlink(missing_ok=True)
    os.mknod(node, 0o600 | stat.S_IFCHR, facts.st_rdev)
    os.chown(node, spec.uid, spec.uid)
    return (), ((node, str(KVM_DEVICE)),)


def _limits(spec: BootSpec) -> cgroup.Limits:
    return cgroup.Limits(
        memory_bytes=(spec.memory_mib + MEMORY_OVERHEAD_MIB) << 20,
        processes=_PROCESSES,
        cpu_weight=100 * spec.vcpus,
    )


async def installed_version() -> str:
    """Return QEMU's version, `7.2.22` or the like. Raises Unavailable where it is not installed."""
    if not PROGRAM.exists():
        raise Unavailable(f"{PROGRAM} is missing: install QEMU, on Debian with `apt-get install qemu-system-x86`.")
    told = (await command.run(str(PROGRAM), "--version")).stdout
    found = re.search(r"version (\S+)", told)
    if found is None:
        raise Unavailable(f"{PROGRAM} does not tell its version: {told[:200]!r}")
    return found.group(1)


async def open_driver(
    instance: str, uid: int, accelerator: str, *, console_level: int = QUIET, in_user_namespace: bool | None = None
) -> QemuDriver:
    """Look at the host and return a driver; about 0.3 s. Raises Unavailable, VmmError.

    `uid` is any of the instance's for VMs, to try user namespaces with; `in_user_namespace` not None skips the trial.
    """
    version = await installed_version()
    if in_user_namespace is None:
        in_user_namespace = await jail.user_namespaces(User(uid, uid))
    own = program_files()
    needed = [library for program in own if program.suffix in {"", ".so"} for library in await jail.libraries(program)]
    dropper = () if in_user_namespace else await jail.dropper_files()
    how = Accelerator(accelerator, await tsc.measure_khz() if accelerator == "tcg" else 0)
    return QemuDriver(
        instance=instance,
        version=version,
        accelerator=how,
        cpu=how.cpu if how.name == "tcg" else f"{how.cpu},{cpu.fingerprint()}",
        program=tuple(dict.fromkeys((*own, *needed, *dropper))),
        in_user_namespace=in_user_namespace,
        console_level=console_level,
    )
