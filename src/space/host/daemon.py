"""Start a long-lived process that outlives us: own session, dropped privileges, output to a file, held by pidfd.

Privileges are dropped by `setpriv` between fork and exec of the program, and a network namespace is entered by
`nsenter`; both replace themselves, so the pid is the program's own.
"""

import dataclasses
import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from space.host.command import in_netns
from space.host.process import ProcessRef, Watched, start_time
from space.settings import search_path


@dataclasses.dataclass(frozen=True, slots=True)
class User:
    """Who a daemon runs as; None of it is looked up in /etc/passwd."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def drop_privileges(user: User) -> tuple[str, ...]:
    """Return the argv prefix that turns root into `user` with no capability left and no way to gain one."""
    groups = ("--groups", ",".join(map(str, user.groups))) if user.groups else ("--clear-groups",)
    return (
        "setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", *groups,
        "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--",
    )  # fmt: skip


def spawn(
    argv: Sequence[str],
    *,
    log: Path | int | None,
    user: User | None = None,
    netns: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path = Path("/"),
    pass_fds: Sequence[int] = (),
    open_files: int = 65536,
) -> Watched:
    """Start `argv` and return it watched.

    `user` None keeps root: only for the worker, which makes namespaces and mounts. `log` gets both outputs, appended
    (an int is an open descriptor, the caller's); None discards them. Core dumps are off: memory may hold secrets.
    `open_files` is cut to our own hard limit. The environment is `env` plus PATH, nothing else.
    """
    # Set before the user changes: from outside it would need CAP_SYS_RESOURCE, and race with the exec.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = open_files if hard == resource.RLIM_INFINITY else min(open_files, hard)
    limits = ("prlimit", "--core=0", f"--nofile={files}", "--")
    full = in_netns(netns, (*limits, *(drop_privileges(user) if user else ()), *argv))
    if isinstance(log, Path):
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    else:
        target = subprocess.DEVNULL if log is None else log
    try:
        process = subprocess.Popen(
            full,
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            cwd=cwd,
            env={"PATH": search_path(), "LC_ALL": "C.UTF-8", **(env or {})},
            pass_fds=tuple(pass_fds),
            start_new_session=True,
            close_fds=True,
        )
    finally:
        if isinstance(log, Path):
            os.close(target)
    process.returncode = 0  # Popen must never reap: the pidfd owner does
    started = start_time(process.pid)
    pidfd = os.pidfd_open(process.pid)
    return Watched(ProcessRef(process.pid, started or 0), pidfd)
