"""What every driver promises the worker, on real VMs; see `space.vmm.driver`."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.vmm import CODE_DIR, LAYOUT, Bench, Machine, machine

from space.host import cgroup, command, files, process
from space.host.process import ProcessRef
from space.vmm.driver import Driver, Vm, VmmError, VmStatus


async def within(seconds: float, fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a fact is true; OSError means not yet."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                if await fact():
                    return
            except OSError:
                pass
            await asyncio.sleep(0.02)


async def becomes(status: VmStatus, made: Machine, seconds: float = 20) -> None:
    """Wait until the VM's status is this one."""
    async with asyncio.timeout(seconds):
        while made.running.status is not status:
            await made.running.next_status(made.running.status)


async def test_the_agent_answers_through_the_tap(vm_shared: Machine) -> None:
    """Boot reaches the agent, and a command runs under a kernel of its own."""
    assert await vm_shared.health() == 200
    code, output = await vm_shared.run("uname -r")
    assert code == 0
    assert output.strip() != os.uname().release


async def test_kill_ends_it_and_says_so(driver: Driver, vm_new: Machine) -> None:
    """SIGKILL from us or from anybody else is told as such, the process and its group are gone."""
    vm = await vm_new.start(driver)
    pid = vm.ref.pid
    assert vm.alive
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        ended = await vm.wait()
        assert await vm.next_status(VmStatus.RUNNING) is VmStatus.GONE
    assert (ended.status, ended.reason) == (-signal.SIGKILL, "the VMM was killed by SIGKILL")
    assert not vm.alive
    await vm.kill()
    assert process.start_time(pid) is None
    assert vm_new.spec.sandbox not in cgroup.sandboxes(LAYOUT.instance)
    with pytest.raises(VmmError):
        await vm.pause()


async def test_a_guest_that_resets_is_told_with_its_console(driver: Driver, vm_new: Machine) -> None:
    """A reset ends the VM, it never boots again behind our back; the last words stay readable."""
    vm = await vm_new.start(driver)
    await vm_new.initialise()
    await vm_new.spawn("echo last words > /dev/ttyS0; echo b > /proc/sysrq-trigger")
    async with asyncio.timeout(20):
        ended = await vm.wait()
    assert (ended.status, ended.reason) == (0, "the guest powered off or reset itself")
    assert "last words" in await vm.console()


async def test_a_guest_whose_kernel_panics_is_told_as_such(driver: Driver, vm_new: Machine) -> None:
    """A panic resets the machine, and was told as "powered off or reset itself"."""
    vm = await vm_new.start(driver)
    await vm_new.initialise()
    await vm_new.spawn("echo c > /proc/sysrq-trigger")
    async with asyncio.timeout(20):
        ended = await vm.wait()
    assert ended.reason == "the guest's kernel panicked: sysrq triggered crash"


async def test_pause_stops_the_guest_and_resume_continues_it(vm_shared: Machine) -> None:
    """A paused guest answers nobody; both verbs may be said twice."""
    vm = vm_shared.running
    for _ in range(2):
        await vm.pause()
    await becomes(VmStatus.PAUSED, vm_shared)
    with pytest.raises(OSError, match="timed out"):
        await vm_shared.health()
    for _ in range(2):
        await vm.resume()
    await becomes(VmStatus.RUNNING, vm_shared)
    assert await vm_shared.health() == 200


async def test_a_restored_clone_goes_on_where_it_was_saved(driver: Driver, bench: Bench, vm_new: Machine) -> None:
    """Save, clone memory and disk by reflink, go on: the original and the clone both have what was there, apart."""
    vm = await vm_new.start(driver)
    await vm_new.initialise()
    await vm_new.run("echo before > /dev/shm/memory; echo before > /root/disk; sync")
    await vm.pause()
    state = vm_new.folder / "state"
    await vm.save(state)
    async with machine(bench, memory_from=vm_new.spec.memory, disk_from=vm_new.spec.disk) as clone:
        await vm.resume()
        await clone.start(driver, state)
        await clone.initialise()
        assert clone.running.status is VmStatus.RUNNING
        assert await clone.run("cat /dev/shm/memory /root/disk") == (0, "before\nbefore\n")
        await clone.run("echo clone > /dev/shm/memory; echo clone > /root/disk; sync")
        assert await vm_new.run("cat /dev/shm/memory /root/disk") == (0, "before\nbefore\n")


async def test_a_vm_that_stood_still_since_it_was_saved_is_saved_again(
    driver: Driver, bench: Bench, vm_new: Machine
) -> None:
    """A paused sandbox was copied, and could then be neither suspended nor copied: QEMU refused a second state."""
    vm = await vm_new.start(driver)
    await vm_new.initialise()
    await vm_new.run("echo before > /dev/shm/memory")
    await vm.pause()
    state = vm_new.folder / "state"
    await vm.save(state)
    await vm.save(state)
    async with machine(bench, memory_from=vm_new.spec.memory, disk_from=vm_new.spec.disk) as clone:
        await clone.start(driver, state)
        await clone.initialise()
        assert await clone.run("cat /dev/shm/memory") == (0, "before\n")
    assert vm.status is VmStatus.PAUSED


async def test_a_state_that_is_not_one_is_refused(driver: Driver, bench: Bench, vm_new: Machine) -> None:
    """Rubbish instead of a device state: an error, and nothing left running."""
    state = vm_new.folder / "state"
    state.write_bytes(b"no such state" * 100)
    with pytest.raises(VmmError):
        await vm_new.start(driver, state)
    assert vm_new.spec.sandbox not in cgroup.sandboxes(LAYOUT.instance)


async def test_a_vm_outlives_its_parent_and_is_adopted(driver: Driver, vm_new: Machine) -> None:
    """`kill -9` of the process that started it; another one takes over and has all of it."""
    vm, parent = await _boot_elsewhere(driver, vm_new)
    parent.kill()
    await parent.wait()
    adopted = await _adopted(driver, vm_new, vm)
    assert adopted.status is VmStatus.RUNNING
    await vm_new.initialise()
    await adopted.pause()
    await adopted.save(vm_new.folder / "state")
    await adopted.resume()
    assert await vm_new.health() == 200
    adopted.release()
    again = await _adopted(driver, vm_new, vm)
    await again.kill()
    assert (await again.wait()).status is None
    assert await driver.adopt(vm_new.folder, vm) is None


async def test_a_reset_that_nobody_saw_is_told_after_adoption(driver: Driver, vm_new: Machine) -> None:
    """A guest that ended while no worker ran is found ended, with its reason and console."""
    ref, parent = await _boot_elsewhere(driver, vm_new)
    await vm_new.initialise()
    parent.kill()
    await parent.wait()
    await vm_new.spawn("echo last words > /dev/ttyS0; echo b > /proc/sysrq-trigger")

    async def silent() -> bool:
        try:
            await vm_new.health()
        except OSError:
            return True
        return False

    await within(20, silent)
    vm = await _adopted(driver, vm_new, ref)
    async with asyncio.timeout(10):
        ended = await vm.wait()
    assert ended.reason == "the guest powered off or reset itself"
    assert "last words" in await vm.console()


async def _adopted(driver: Driver, made: Machine, ref: ProcessRef) -> Vm:
    made.vm = await driver.adopt(made.folder, ref)
    return made.running


async def _boot_elsewhere(driver: Driver, made: Machine) -> tuple[ProcessRef, asyncio.subprocess.Process]:
    spec = dataclasses.asdict(made.spec)
    told = {name: str(value) if isinstance(value, Path) else value for name, value in spec.items()}
    told |= {"netns": str(made.place), "accelerator": driver.accelerator}
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.vmm_parent", json.dumps(told),
        cwd=CODE_DIR, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    async with asyncio.timeout(20):
        return ProcessRef(**json.loads(await parent.stdout.readline())), parent


@contextlib.asynccontextmanager
async def small_place(bench: Bench) -> AsyncGenerator[Path]:
    """A file system of 768 MiB, apart from all else."""
    image, place = bench.layout.data_dir / "small.img", bench.layout.data_dir / "small"
    image.unlink(missing_ok=True)
    image.touch()
    os.truncate(image, 768 << 20)
    await command.run("mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", str(image))
    files.make_dir(place, mode=0o711)
    await command.run("mount", "-o", "loop", str(image), str(place))
    try:
        yield place
    finally:
        await command.run("umount", str(place))
        place.rmdir()
        image.unlink()


async def test_a_full_disk_stops_the_vm_until_there_is_room(driver: Driver, bench: Bench) -> None:
    """No room on the host: the VM stops with that reason, no write is lost, and it goes on when there is room."""
    async with small_place(bench) as place:
        disk, ballast = place / "disk", place / "ballast"
        await command.run("cp", "--sparse=always", str(bench.template.rootfs), str(disk))
        free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
        await command.run("fallocate", "--length", str(free - (24 << 20)), str(ballast))
        async with machine(bench, disk=disk) as made:
            vm = await made.start(driver)
            await made.initialise()
            await made.spawn(
                "cd /root; dd if=/dev/urandom of=fill bs=1M count=64 conv=fsync; sha256sum fill > sum; sync"
            )
            await becomes(VmStatus.DISK_FULL, made, 60)
            vm.release()
            vm = made.vm = await _adopted(driver, made, vm.ref)
            assert vm.status is VmStatus.DISK_FULL
            ballast.unlink()
            await vm.resume()
            await becomes(VmStatus.RUNNING, made)

            async def summed() -> bool:
                return await made.run("test -s /root/sum") == (0, "")

            await within(60, summed)
            assert await made.run("cd /root; echo 3 > /proc/sys/vm/drop_caches; sha256sum -c sum") == (0, "fill: OK\n")


async def test_a_flooded_console_stays_bounded(vm_shared: Machine) -> None:
    """`yes > /dev/ttyS0`: neither the console we keep nor the VMM's memory or folder grows with it."""
    await vm_shared.run("timeout 3 sh -c 'yes flood > /dev/ttyS0'; true")
    console = await vm_shared.running.console()
    assert "flood" in console
    assert len(console) <= 65536
    used = sum(path.stat().st_size for path in vm_shared.folder.iterdir() if path.name != "disk")
    assert used < 1 << 20
    assert vm_shared.running.status is VmStatus.RUNNING


async def test_what_cannot_start_says_why_and_leaves_nothing(driver: Driver, vm_new: Machine) -> None:
    """A VMM that refuses its configuration: the error carries its words."""
    vm_new.spec = dataclasses.replace(vm_new.spec, vcpus=9999)
    with pytest.raises(VmmError, match="CPU"):
        await vm_new.start(driver)
    assert vm_new.spec.sandbox not in cgroup.sandboxes(LAYOUT.instance)


async def test_a_kernel_that_cannot_be_read_says_so(driver: Driver, vm_new: Machine) -> None:
    """A jail that cannot be made: the error names the file."""
    vm_new.spec = dataclasses.replace(vm_new.spec, kernel=vm_new.folder / "absent")
    with pytest.raises(VmmError, match="absent"):
        await vm_new.start(driver)
    assert vm_new.spec.sandbox not in cgroup.sandboxes(LAYOUT.instance)


async def test_a_missing_disk_is_told_and_leaves_nothing(driver: Driver, vm_new: Machine) -> None:
    """A file of the VM that is not there: the error names it."""
    vm_new.spec = dataclasses.replace(vm_new.spec, disk=vm_new.folder / "absent")
    with pytest.raises(VmmError, match="absent"):
        await vm_new.start(driver)
    assert vm_new.spec.sandbox not in cgroup.sandboxes(LAYOUT.instance)


async def test_a_cancelled_start_leaves_nothing(driver: Driver, vm_new: Machine) -> None:
    """Cancelled at any of many moments: no process of the VM's user, no group, and a later start works."""
    for delay_s in (0, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await vm_new.start(driver)
        if vm_new.vm is not None:  # it was quicker
            await vm_new.vm.kill()
        found = await command.run("pgrep", "--uid", str(vm_new.spec.uid), check=False)
        # an orphan may stay a zombie until process 1 looks; `start_time` counts that as gone
        assert [pid for pid in found.stdout.split() if process.start_time(int(pid)) is not None] == []
        assert vm_new.spec.sandbox not in cgroup.sandboxes(LAYOUT.instance)
    assert (await vm_new.start(driver)).alive
