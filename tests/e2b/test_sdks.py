"""Each program under each SDK that it is for.

A program is a file in `programs/`: `.py` for Python's SDK, `.mjs` for JavaScript's. It runs under the floor and the
newest version; one that needs the newest says so in its first line: `# sdk: newest` or `// sdk: newest`.
"""

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
EXAMPLES = Path(__file__).parents[2] / "examples" / "e2b"
_LANGUAGES = {".py": "python", ".mjs": "js"}


def _cases() -> Iterator[tuple[Path, str]]:
    for program in sorted(PROGRAMS.iterdir()):
        if program.suffix in _LANGUAGES:
            first = program.read_text().split("\n", 1)[0]
            for version in ("newest",) if first.endswith("sdk: newest") else ("floor", "newest"):
                yield program, f"{_LANGUAGES[program.suffix]}-{version}"


@pytest.mark.parametrize(("program", "sdk"), [pytest.param(*case, id=f"{case[0].name}-{case[1]}") for case in _cases()])
async def test_program(run_program: Callable[[Path, str], Coroutine[None, None, str]], program: Path, sdk: str) -> None:
    await run_program(program, sdk)


@pytest.mark.parametrize("name", ["commands_and_files.py", "plot.py"])
async def test_quick_starts_of_e2b_run_as_they_are(
    run_program: Callable[[Path, str], Coroutine[None, None, str]], name: str
) -> None:
    said = await run_program(EXAMPLES / name, "python-newest")
    assert ("Hello, World!" if name.startswith("commands") else "plot.png is a line chart named Squares") in said
