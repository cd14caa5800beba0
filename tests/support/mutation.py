"""What a mutation is: a control of the way out or in, how it is switched off, and what must notice.

Either cases of the catalogue notice, on the range, from inside a microVM; or tests of the proxies and rules on their
own do, for what a guest cannot bring about (a gateway that answers oddly, a process in a foreign place) or only slowly.
Where several controls hold the same, one alone shows nothing: they are switched off together.
"""

import contextlib
import dataclasses
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from tests.support.range import Range
from tests.support.switches import Switch, Text

from space.host import command

_ROOT = Path(__file__).parents[2]
_TEST_S = 300


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A control, and how it is switched off. Of `cases` or of `tests` at least one must turn red.

    `deaf`: without it nothing honest passes either, so that nothing is asked for before the attack.
    """

    control: str
    changes: tuple[Switch, ...]
    cases: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    deaf: bool = False

    @contextlib.asynccontextmanager
    async def off(self, r: Range, code: Path) -> AsyncGenerator[None]:
        """Switch it off on the range, see that A and B can still do what they may, and put it back."""
        daemons = tuple(dict.fromkeys(name for change in self.changes for name in change.daemons))
        try:
            async with contextlib.AsyncExitStack() as stack:
                for change in self.changes:
                    await stack.enter_async_context(change.off(r, code))
                await r.start_again(*daemons)
                if not self.deaf:
                    await r.until_both_allowed()
                yield
        finally:
            await r.start_again(*daemons)

    async def noticed(self, code: Path, python: Path) -> tuple[str, str] | None:
        """Switch it off in the sources in `code`; return the first of its tests that fails with them, and why.

        One whose world cannot even be made with them shows nothing: that fails here.
        """
        with contextlib.ExitStack() as stack:
            for change in self.changes:
                assert isinstance(change, Text), "tests of their own make their namespaces themselves"
                stack.enter_context(change.replaced(change.path(code)))
            for test in self.tests:
                argv = (str(python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{test}")
                done = await command.run(*argv, cwd=_ROOT, check=False, timeout_s=_TEST_S)
                assert done.status in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
                if done.status == 1:
                    assert " error" not in done.stdout.splitlines()[-1], done.stdout[-2000:]
                    why = [line.removeprefix("E ").strip() for line in done.stdout.splitlines() if line[:2] == "E "]
                    return test, why[0] if why else ""
        return None


def change(control: str, *changes: Switch, by: str, deaf: bool = False) -> Mutation:
    """Return the mutation that something in `by` notices: ids of cases, or tests (`folder/file.py::test`)."""
    words = by.split()
    tests = tuple(word for word in words if "::" in word)
    return Mutation(control, changes, tuple(word for word in words if "::" not in word), tests, deaf)


def code(file: str, old: str, new: str, *daemons: str) -> Text:
    """Return a change of our code, which the gateway takes up, or whoever is named."""
    return Text(file, old, new, daemons or ("gateway",))


def egress(old: str, new: str) -> Text:
    """Return a change of the egress proxy's configuration."""
    return Text("egress.yaml", old, new, ("egress",))


def make_python(folder: Path, code_folder: Path) -> Path:
    """Make a Python in `folder` that has our packages, with `space` from `code_folder`; return its path."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    ours = Path(sys.prefix) / "lib" / version / "site-packages"
    (site / "range.pth").write_text(f"{code_folder / 'src'}\n{ours}\n")
    real = Path(sys.executable).resolve()
    (folder / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(real)
    return folder / "bin" / "python"
