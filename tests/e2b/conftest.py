"""Runs programs that were written for E2B's SDKs, under the SDKs as they are published, against a running SPACE."""

import asyncio
import os
import re
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from tests.support.deployment import Deployment

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SDKS = ROOT / ".cache" / "sdks"
_TIMEOUT_S = 300
_RUN = """\
import os, runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
os._exit(0)
"""
"""Ends without taking the interpreter down, in which threads of the SDK's HTTP client now and then abort it."""

_BUILD_TIMEOUT_S = 1200
"""The first build fetches and installs, and boots with an emulated CPU."""

_CODE_INTERPRETER = re.compile("e2b[_/]code.interpreter")
"""What a program says that needs the template of E2B's code interpreter."""

Runner = Callable[[Path, str], Coroutine[None, None, str]]


@pytest.fixture
def run_program(space: Deployment) -> Runner:
    """Return what runs one program under one SDK and gives its output; the test fails where the program does."""
    if not SDKS.is_dir():
        pytest.fail("The SDKs are not installed: run scripts/sdks (scripts/test does it).")

    async def run(program: Path, sdk: str) -> str:
        if _CODE_INTERPRETER.search(program.read_text()):
            # at once where it was built before
            status, out, err = await space.cli("template", "build", "code-interpreter-v1", timeout_s=_BUILD_TIMEOUT_S)
            assert status == 0, out + err
        with tempfile.TemporaryDirectory() as home:
            process = await asyncio.create_subprocess_exec(
                *_command(program, sdk, Path(home)),
                env=_environment(space, home),
                cwd=home,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    said, _ = await process.communicate()
            except TimeoutError:
                process.kill()
                said, _ = await process.communicate()
                pytest.fail(f"{program.name} under {sdk} did not end in {_TIMEOUT_S} s:\n{said.decode()}")
        assert process.returncode == 0, f"{program.name} under {sdk} ended with {process.returncode}:\n{said.decode()}"
        return said.decode()

    return run


def _command(program: Path, sdk: str, home: Path) -> tuple[str, ...]:
    if program.suffix == ".py":
        return (str(SDKS / sdk / "bin/python"), "-c", _RUN, str(program))
    # Node looks for modules beside the program, so it is put where they are
    (home / "node_modules").symlink_to(SDKS / sdk / "node_modules")
    copy = home / program.name
    copy.write_bytes(program.read_bytes())
    return (str(SDKS / "node/bin/node"), str(copy))


def _environment(space: Deployment, home: str) -> dict[str, str]:
    """Return what a user of E2B sets to use SPACE, and no more."""
    return {
        "PATH": os.defpath,
        "HOME": home,
        "E2B_API_KEY": space.key,
        "E2B_API_URL": space.url,
        "E2B_SANDBOX_URL": space.url,
        "E2B_VOLUME_API_URL": space.url,
    }
