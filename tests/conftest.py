"""What every folder's tests may ask for."""

import signal

import pytest


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
