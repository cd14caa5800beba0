"""What several files here need."""

import secrets
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from space.guest.dial import GUEST_ADDRESS
from space.host import command, netns


@pytest.fixture
async def guest() -> AsyncGenerator[Path]:
    """A namespace with the guest's address."""
    name = f"test-{secrets.token_hex(3)}"
    await command.run("ip", "netns", "add", name)
    try:
        await command.run("ip", "-n", name, "address", "add", f"{GUEST_ADDRESS}/32", "dev", "lo")
        await command.run("ip", "-n", name, "link", "set", "lo", "up")
        yield netns.path(name)
    finally:
        await netns.delete(name)
