"""One deployment for the whole folder; tests that break something leave it working again."""

import os
import random
import secrets
import signal
from collections.abc import AsyncGenerator

import pytest
from tests.support.deployment import Deployment


def pytest_configure() -> None:
    """Let what we start be interrupted, also where we were started in the background, which ignores SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `scripts/test endurance` and whoever looks for the cause of a failure need."""
    parser.addoption("--full", action="store_true", help="endurance tests in their full size")
    parser.addoption("--seed", type=int, default=None, help="of what endurance tests choose at random")


@pytest.fixture
def rng(pytestconfig: pytest.Config) -> random.Random:
    """Choose at random; the seed is shown with a failure, and `--seed` repeats it."""
    given = pytestconfig.getoption("--seed", default=None)
    seed = secrets.randbits(32) if given is None else given
    print(f"--seed {seed}")  # noqa: T201 - pytest shows it where the test fails
    return random.Random(seed)


@pytest.fixture(scope="session")
async def space() -> AsyncGenerator[Deployment]:
    """A running SPACE with the base template."""
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
