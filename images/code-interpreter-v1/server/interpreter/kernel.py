"""What a kernel is to a context, whichever language it runs."""

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from interpreter.lines import Line


class KernelDied(Exception):
    """The kernel's process ended without being told to; `str()` says how."""


class KernelFailed(Exception):
    """A kernel could not be started; `str()` says why."""


class Kernel(Protocol):
    """One process that keeps what the code it ran has defined. It runs one cell at a time."""

    @property
    def alive(self) -> bool:
        """Whether its process lives."""

    async def start(self) -> None:
        """Start it; on return it takes code. Raises KernelFailed."""

    def execute(self, code: str, env: Mapping[str, str]) -> AsyncGenerator[Line]:
        """Run a cell, `env` set for as long, and yield what it tells. Raises KernelDied."""

    def interrupt(self) -> None:
        """Ask the running cell to end; it may take no notice."""

    def renew(self) -> None:
        """Tell it that it may be a copy: it looks, and takes on what is its own."""

    async def stop(self) -> None:
        """End it; fine twice."""
