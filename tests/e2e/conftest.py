"""What tests of a whole SPACE choose at random."""

import random
import secrets

import pytest


@pytest.fixture
def rng(pytestconfig: pytest.Config) -> random.Random:
    """Choose at random; the seed is shown with a failure, and `--seed` repeats it."""
    given = pytestconfig.getoption("--seed")
    seed = secrets.randbits(32) if given is None else given
    print(f"--seed {seed}")  # noqa: T201 - pytest shows it where the test fails
    return random.Random(seed)
