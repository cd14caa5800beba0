"""Real VMs; everything here needs root."""

import os
from collections.abc import AsyncGenerator

import pytest
from tests.support.vmm import Bench, Machine, machine, open_bench

from space.settings import DriverChoice
from space.vmm import probe
from space.vmm.driver import Driver


@pytest.fixture(scope="session")
async def bench() -> AsyncGenerator[Bench]:
    """The base template on areas of the tests' own."""
    if os.getuid() != 0:
        pytest.skip("needs root: makes mounts, namespaces and processes of other users")
    async with open_bench() as opened:
        yield opened


@pytest.fixture(scope="session", params=["qemu-tcg", "qemu-kvm", "firecracker"])
async def driver(request: pytest.FixtureRequest, bench: Bench) -> Driver:
    """Each driver that can run guests on this host."""
    choice: DriverChoice | str = request.param
    if choice == "firecracker":
        pytest.skip("there is no Firecracker driver yet")
    if choice == "qemu-kvm":
        verdict = await probe.kvm_verdict(bench.layout, bench.template.kernel, bench.template.initrd)
        if not verdict.works:
            pytest.skip(f"KVM does not run guests here: {verdict.reason}")
        return await probe.choose(bench.layout, "qemu-kvm", bench.template.kernel, bench.template.initrd)
    return await probe.choose(bench.layout, "qemu-tcg", bench.template.kernel, bench.template.initrd)


@pytest.fixture
async def vm_new(bench: Bench) -> AsyncGenerator[Machine]:
    """A VM's files and namespace, nothing started."""
    async with machine(bench) as made:
        yield made


@pytest.fixture(scope="session")
async def vm_shared(bench: Bench, driver: Driver) -> AsyncGenerator[Machine]:
    """A running VM whose agent answers; for tests that leave it running."""
    async with machine(bench) as made:
        await made.start(driver)
        await made.initialise()
        yield made
