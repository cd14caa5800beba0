"""What a kernel's process starts with: its variables are the user's and the sandbox's, none of this server's own."""

import os
from collections.abc import Mapping
from pathlib import Path

SANDBOX = Path("/run/space/environment")
"""The sandbox's variables, `NAME=VALUE` and a NUL each; the agent keeps it."""

_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG")


def for_kernel(own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a new kernel; `own` are those of this process."""
    passed = {name: own[name] for name in _PASSED_ON if name in own}
    return {"LANG": "C.UTF-8", "MPLBACKEND": "module://matplotlib_inline.backend_inline"} | passed | of_sandbox()


def of_sandbox() -> dict[str, str]:
    """Return the sandbox's variables; none where no agent has written them."""
    try:
        content = os.fsdecode(SANDBOX.read_bytes())
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in content.split("\0") if "=" in entry)
