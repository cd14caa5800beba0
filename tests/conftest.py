"""What every folder's tests may ask for."""

import os
import signal
from collections.abc import AsyncGenerator

import pytest
from tests.support.deployment import Deployment


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `scripts/test endurance` and whoever looks for the cause of a failure need."""
    parser.addoption("--full", action="store_true", help="long tests in their full size")
    parser.addoption("--seed", type=int, default=None, help="of what endurance tests choose at random")


def pytest_configure() -> None:
    """Let what we start be interrupted, also where we were started in the background, which ignores SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def full(pytestconfig: pytest.Config) -> bool:
    """Whether long tests are to run in their full size."""
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture(scope="session")
async def space() -> AsyncGenerator[Deployment]:
    """A running SPACE with the base template: one for all folders; tests that break something leave it working."""
    if os.getuid() != 0:
        pytest.skip("needs root: SPACE makes namespaces, mounts and processes of other users")
    deployment = Deployment()
    await deployment.up()  # where another run has the data folder, that one is not to be taken down
    try:
        status, out, err = await deployment.cli("template", "build", "base")
        assert status == 0, out + err
        for left in (await deployment.http.get("/v1/sandboxes")).json()["sandboxes"]:  # by a run that was cut off
            await deployment.delete(left["id"])
        yield deployment
    finally:
        await deployment.down()


@pytest.fixture
async def sandbox(space: Deployment) -> AsyncGenerator[str]:
    """A running sandbox of its own for a test."""
    made = await space.create()
    yield made
    await space.delete(made)
