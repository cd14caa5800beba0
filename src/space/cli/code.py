"""Our program files, where every user id of the instance can read them.

The server processes run as their own user ids, and a checkout below a closed home directory (/root is 0700) cannot be
read by them. There `space up` bind-mounts the virtual environment and the sources, read-only, below the run folder and
starts itself again from them, so that every path computed afterwards (Envoy, PostgreSQL) is a readable one.
"""

import os
import sys
from pathlib import Path

import space
from space.host import command
from space.host.daemon import User, drop_privileges
from space.host.files import make_dir
from space.host.mounts import mounted_at
from space.layout import Layout
from space.model.errors import InvalidArgument

_PROBE = "import sys, space, pydantic_core, envoy; sys.exit(not space.__file__.startswith(sys.argv[1]))"
"""Not only that there is a `space`, but that it is the one in our sources."""

_MOUNTS = ("venv", "src", "agent")


def source_dir(layout: Layout) -> Path:
    """Return the folder that holds the package `space`, as the server processes are to see it."""
    if _exposed(layout):
        return layout.run_dir / "code" / "src"
    return Path(space.__file__).resolve().parent.parent


def code_dir(layout: Layout) -> Path:
    """Return the folder that holds `agent/`."""
    return source_dir(layout).parent


async def expose(layout: Layout, arguments: list[str]) -> None:
    """Return where the processes can read our files; else mount them and start this program anew with `arguments`.

    Needs root for the mounts, which are read-only views of our own files. Raises InvalidArgument where even a mount
    does not help.
    """
    if _exposed(layout):
        return
    if await _readable(layout, Path(sys.executable), source_dir(layout)):
        return
    await hide(layout)
    code = layout.run_dir / "code"
    make_dir(code, mode=0o711)
    sources = source_dir(layout)
    for name, origin in zip(_MOUNTS, (Path(sys.prefix), sources, sources.parent / "agent"), strict=True):
        make_dir(code / name, mode=0o755)
        await command.run("mount", "--bind", str(origin), str(code / name))
        await command.run("mount", "-o", "remount,bind,ro,nosuid,nodev", str(code / name))
    python = code / "venv" / "bin" / "python"
    if not await _readable(layout, python, code / "src"):
        await hide(layout)
        raise InvalidArgument(
            f"The files in {sys.prefix} and {sources} cannot be read by unprivileged users. "
            f"Allow it (chmod -R o+rX {sys.prefix} {sources}), with an environment made by /usr/bin/python3."
        )
    os.execv(python, [str(python), "-P", "-m", "space.cli.main", *arguments])  # noqa: S606 - there is no shell to want


async def hide(layout: Layout) -> None:
    """Take the mounts away; nothing happens where there are none. Running processes keep what they have open."""
    for name in _MOUNTS:
        target = layout.run_dir / "code" / name
        while mounted_at(target) is not None:
            await command.run("umount", "--lazy", str(target))


def _exposed(layout: Layout) -> bool:
    return Path(sys.prefix) == layout.run_dir / "code" / "venv"


async def _readable(layout: Layout, python: Path, sources: Path) -> bool:
    """Tell by trying, as the api's user: modes, access lists and closed parents all count."""
    prefix = drop_privileges(User(layout.api_uid, layout.api_uid))
    environment = {"PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = (*prefix, str(python), "-P", "-c", _PROBE, str(sources))
    done = await command.run(*argv, env=environment, cwd=Path("/"), check=False)
    return done.status == 0
