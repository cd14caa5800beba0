"""The jail a VMM runs in, as one argv: nothing but its own files, no capability, no network, no way to anything else.

Two forms with the same walls. Where an unprivileged user may make user namespaces, root becomes the VM's uid first
(`setpriv`) and `bwrap` builds the jail as that uid. Where that is off (a hardened kernel), `bwrap` builds it as root
and `setpriv` drops root inside. Either way the VMM is process 1 of its own pid namespace, in empty mount, network, ipc
and uts namespaces, under a uid that no other VM has. It filters its system calls itself (`-sandbox`).

Not `--die-with-parent`: a VM outlives the worker. Limits are set before anything else runs, by `prlimit`.
"""

import dataclasses
from pathlib import Path

from space.host import command
from space.host.daemon import User, drop_privileges

_SETPRIV = Path("/usr/bin/setpriv")


@dataclasses.dataclass(frozen=True, slots=True)
class Jail:
    """What one VMM may see and use. Paths on the host must be passable by `user` (folders 0711)."""

    user: User
    program_files: tuple[Path, ...]
    """Files of the VMM itself (binary, libraries, firmware), read-only, at their own paths."""

    read_only: tuple[tuple[Path, str], ...]
    """(file on the host, path in the jail)."""

    writable: tuple[tuple[Path, str], ...]
    devices: tuple[tuple[Path, str], ...]
    file_size_bytes: int
    """No file may be made longer than this."""


async def user_namespaces(user: User) -> bool:
    """Tell, by trying, whether `bwrap` may make a user namespace as `user` on this host (about 10 ms)."""
    tried = await command.run(
        *drop_privileges(user),
        "bwrap", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/", "--", "/usr/bin/true",
        check=False,
    )  # fmt: skip
    return tried.status == 0


async def libraries(program: Path) -> tuple[Path, ...]:
    """Return the shared libraries a program of the host needs, and its loader, as paths below /usr."""
    listed = await command.run("ldd", str(program))
    found = []
    for line in listed.stdout.splitlines():
        path = next((word for word in line.split() if word.startswith("/")), None)
        if path:
            found.append(_below_usr(Path(path)))
    return tuple(dict.fromkeys(found))


def _below_usr(path: Path) -> Path:
    """Return /lib/... as /usr/lib/...: the jail has links for the old names, as every merged system has."""
    merged = Path("/usr") / path.relative_to("/")
    return merged if not path.is_relative_to("/usr") and merged.exists() else path


def argv(
    jail: Jail, program: tuple[str, ...], *, in_user_namespace: bool, info_fd: int, block_fd: int
) -> tuple[str, ...]:
    """Return the command that root runs to start `program` in the jail.

    `bwrap` writes the VMM's pid to `info_fd` as JSON and waits for a byte on `block_fd` before it starts the VMM.
    """
    drop = drop_privileges(jail.user)
    limits = ("prlimit", f"--fsize={jail.file_size_bytes}", "--")
    walls = (
        "bwrap",
        "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "vm",
        "--as-pid-1", "--clearenv", "--info-fd", str(info_fd), "--block-fd", str(block_fd),
        "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
    )  # fmt: skip
    binds = [("--ro-bind", path, str(path)) for path in jail.program_files]
    binds += [("--ro-bind", source, path) for source, path in jail.read_only]
    binds += [("--bind", source, path) for source, path in jail.writable]
    binds += [("--dev-bind", source, path) for source, path in jail.devices]
    # named, because bwrap makes the folders that it needs and nobody named 0700: root's, in the second form
    folders = {folder for _, _, path in binds for folder in Path(path).parents} - {Path("/")}
    files = [word for folder in sorted(folders) for word in ("--dir", str(folder))]
    files += [word for flag, source, path in binds for word in (flag, str(source), path)]
    closed = ("--remount-ro", "/", "--chdir", "/")
    if in_user_namespace:
        userns = ("--unshare-user", "--disable-userns", "--cap-drop", "ALL")
        return (*limits, *drop, *walls, *userns, *files, *closed, "--", *program)
    return (*limits, *walls, *files, *closed, "--", str(_SETPRIV), *drop[1:], *program)


async def dropper_files() -> tuple[Path, ...]:
    """Return what the second form needs in the jail besides the VMM: `setpriv` and its libraries."""
    return (_SETPRIV, *await libraries(_SETPRIV))
