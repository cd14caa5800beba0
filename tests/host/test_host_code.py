"""A checkout that unprivileged users cannot reach is shown to them elsewhere, read-only, and hidden again."""

import contextlib
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

import space
from space.cli import code, folders
from space.host import command
from space.host.command import CommandError
from space.host.daemon import User, drop_privileges
from space.host.mounts import mounted_at
from space.layout import UID_RANGE_FIRST, Layout

_CHECKOUT = Path(space.__file__).resolve().parents[2]
_EXPOSE = """
import asyncio, sys
from pathlib import Path
from space.cli import code
from space.layout import Layout
asyncio.run(code.expose(Layout(Path("/nowhere"), sys.argv[1], int(sys.argv[2])), ["--version"]))
print("readable as it is")
"""


@pytest.fixture
async def layout() -> AsyncGenerator[Layout]:
    made = Layout(Path("/nowhere"), "t" + secrets.token_hex(2)[:3], UID_RANGE_FIRST + 4000 * 65536)
    folders.make_run_dir(made)
    try:
        yield made
    finally:
        await code.hide(made)
        folders.remove_run_dir(made)


@pytest.fixture
def closed_checkout(tmp_path: Path) -> Iterator[Path]:
    """Show this environment and these sources below a folder that is closed to others."""
    closed = tmp_path / "home"
    closed.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        for name, origin in (("venv", Path(sys.prefix)), ("src", _CHECKOUT / "src"), ("agent", _CHECKOUT / "agent")):
            (closed / name).mkdir()
            subprocess.run(["mount", "--bind", str(origin), str(closed / name)], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", str(closed / name)], check=True)
        yield closed


async def _expose(checkout: Path, layout: Layout) -> str:
    python = checkout / "venv" / "bin" / "python"
    arguments = (layout.instance, str(layout.uid_base))
    done = await command.run(
        str(python), "-P", "-c", _EXPOSE, *arguments, env={"PYTHONPATH": str(checkout / "src")}, cwd=Path("/")
    )
    return done.stdout


async def test_a_closed_checkout_is_shown_read_only_and_the_program_goes_on_from_there(
    layout: Layout, closed_checkout: Path
) -> None:
    assert (await _expose(closed_checkout, layout)).startswith("space ")
    shown = layout.run_dir / "code"
    as_api = drop_privileges(User(layout.api_uid, layout.api_uid))
    python = str(shown / "venv" / "bin" / "python")
    done = await command.run(
        *as_api, python, "-P", "-c", "import space; print(space.__file__)", env={"PYTHONPATH": str(shown / "src")}
    )
    assert done.stdout.strip() == str(shown / "src" / "space" / "__init__.py")
    with pytest.raises(OSError, match="Read-only file system"):
        (shown / "src" / "new").touch()

    await code.hide(layout)
    assert [name for name in ("venv", "src", "agent") if mounted_at(shown / name)] == []
    await code.hide(layout)


async def test_mounts_of_a_killed_supervisor_are_replaced(layout: Layout, closed_checkout: Path) -> None:
    await _expose(closed_checkout, layout)
    await _expose(closed_checkout, layout)
    await code.hide(layout)
    assert list((layout.run_dir / "code" / "src").iterdir()) == []


async def test_a_checkout_whose_files_are_closed_is_refused_with_the_cure(layout: Layout, tmp_path: Path) -> None:
    checkout = tmp_path / "closed"
    checkout.mkdir(mode=0o755)
    shutil.copytree(_CHECKOUT / "src", checkout / "src")
    (checkout / "agent").mkdir()
    (checkout / "src" / "space").chmod(0o700)
    (checkout / "venv").symlink_to(sys.prefix)
    with pytest.raises(CommandError, match=r"cannot be read by unprivileged users.*chmod -R o\+rX"):
        await _expose(checkout, layout)
    assert mounted_at(layout.run_dir / "code" / "src") is None
