"""Variables for one run: set before the cell, put back after it.

They come with the request's metadata, so that they cost no message of their own and the user's code stays as it is.
"""

import os
from typing import Any

METADATA = "interpreter_env"
"""The key of a request's metadata under which the variables are: {name: value}."""


def watch(shell: Any) -> None:
    """Set and restore around each cell."""
    before: dict[str, str | None] = {}

    def enter() -> None:
        parent = shell.kernel.get_parent("shell")
        wanted = (parent.get("metadata") or {}).get(METADATA) or {}
        before.clear()
        before.update({name: os.environ.get(name) for name in wanted})
        os.environ.update(wanted)

    def leave() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        before.clear()

    shell.events.register("pre_execute", enter)
    shell.events.register("post_execute", leave)
