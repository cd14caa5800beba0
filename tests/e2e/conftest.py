"""One deployment for the whole folder; tests that break something leave it working again."""

import os
import random
import secrets
from collections.abc import AsyncGenerator

import pytest
from tests.support.deployment import Deployment


@pytest.fixture
def rng(pytestconfig: pytest.Config) -> random.Random:
    """Choose at random; the seed is shown with a failure, and `--seed` repeats it."""
    given = pytestconfig.getoption("--seed")
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
