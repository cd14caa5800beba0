"""A kernel is copied with the machine it runs in: the copy then takes on its own randomness and environment.

A machine's boot id tells copies apart: the agent changes it before any program of a copy runs. It is looked at before
each cell, so that no cell of a copy draws its template's numbers, and when SIGUSR1 comes (the hook `post-restore` has
it sent), so that a cell that was running in the middle of the copy goes on with numbers of its own. A sandbox that
comes back from storage is no copy: its generators go on.
"""

import os
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ENVIRONMENT = Path("/run/space/environment")
"""The sandbox's variables, `NAME=VALUE` and a NUL each; the agent writes it before a copy's programs run."""

_known = {"boot": "", "names": frozenset[str]()}


def watch(shell: Any) -> None:
    """Look before each cell, and on SIGUSR1. What is found now counts as known."""
    _known["boot"], _known["names"] = _boot(), frozenset(_environment())
    shell.events.register("pre_execute", renew_if_copied)
    signal.signal(signal.SIGUSR1, lambda _number, _frame: renew_if_copied())


def renew_if_copied() -> None:
    """Take on this machine's randomness and environment, if it is another one than before."""
    if (boot := _boot()) == _known["boot"]:
        return
    _known["boot"] = boot
    _take_on_environment()
    _seed()


def _boot() -> str:
    try:
        return BOOT_ID.read_text()
    except OSError:
        return ""


def _environment() -> dict[str, str]:
    try:
        content = ENVIRONMENT.read_text(errors="surrogateescape")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in content.split("\0") if "=" in entry)


def _take_on_environment() -> None:
    """Set the sandbox's variables; those of the machine that was copied go."""
    told = _environment()
    for name in _known["names"] - told.keys():
        os.environ.pop(name, None)
    os.environ.update(told)
    _known["names"] = frozenset(told)


def _seed() -> None:
    """Give the global generators seeds from the kernel, whose own the agent has renewed.

    A generator that a program made for itself (`random.Random(7)`, `default_rng()`) is its variable like any other.
    """
    random.seed()
    tempfile._name_sequence = None  # type: ignore[attr-defined] # noqa: SLF001 - it has a generator of its own
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (ssl := sys.modules.get("ssl")) is not None:
        ssl.RAND_add(os.urandom(32), 32.0)  # OpenSSL's generator lives in this process
