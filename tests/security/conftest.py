"""The range for attacks from inside microVMs, and the tables of what they came to."""

import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from tests.support import (
    cases_ingress,
    cases_life,
    cases_load,
    cases_names,
    cases_packets,
    cases_requests,
    cases_secrets,
)
from tests.support.arena import Mutable, copied_code, mutable_arena
from tests.support.arena import arena as open_arena
from tests.support.cases import CASES
from tests.support.mutation import make_python
from tests.support.range import Range

CATALOGUE = (cases_names, cases_ingress, cases_requests, cases_packets, cases_load, cases_secrets, cases_life)
"""Importing them enters their cases."""
_verdicts: list[tuple[str, str, str]] = []
_noticed: list[tuple[str, str, str]] = []
_measured: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker of tests that take the product apart."""
    config.addinivalue_line("markers", "mutation: switches a control off; runs only when asked for (-m mutation)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave those out unless they were asked for."""
    if "mutation" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("mutation")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _need_root() -> None:
    if os.getuid() != 0:
        pytest.skip("needs root: SPACE makes namespaces, mounts and processes of other users")


@pytest.fixture(scope="session")
async def arena() -> AsyncGenerator[Range]:
    """The range."""
    _need_root()
    async with open_arena({}) as made:
        yield made


@pytest.fixture(scope="session")
async def mutable() -> AsyncGenerator[Mutable]:
    """The range, running from a copy of the code."""
    _need_root()
    async with mutable_arena() as made:
        yield made


@pytest.fixture(scope="session")
def copy() -> Generator[tuple[Path, Path]]:
    """A copy of the sources that may be changed, and a Python that runs them."""
    _need_root()
    with copied_code() as code:
        yield code, make_python(code / "venv", code)


@pytest.fixture
def noticed() -> list[tuple[str, str, str]]:
    """Which control was noticed by what, and how, for the table at the end."""
    return _noticed


@pytest.fixture
def measured() -> list[str]:
    """Lines for the end of the run: what was measured and is not asserted."""
    return _measured


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what each case came to."""
    report = yield
    name = str(item.callspec.params.get("case_id", "")) if hasattr(item, "callspec") else ""
    if name and (report.when == "call" or report.outcome != "passed"):
        failed = "BROKEN" if report.when == "call" else "ERROR"
        verdict = {"passed": "held", "failed": failed}.get(report.outcome, "not run")
        again = item.callspec.params.get("change", "")
        _verdicts.append((name, verdict, f" (after {again})" if again else ""))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables: case, verdict, what was tried, by what it was judged; and which case noticed which control."""
    if _verdicts:
        terminalreporter.section("attacks")
    for name, verdict, again in _verdicts:
        case = CASES[name]
        terminalreporter.write_line(f"{name:<22}{verdict:<8}{case.tried}{again}  [{case.oracle}]")
    if _noticed:
        terminalreporter.section("controls switched off")
    for control, red, why in _noticed:
        terminalreporter.write_line(
            f"{control}: {'red: ' + red if red else 'NOT NOTICED'}{' - ' * bool(why)}{why[:120]}"
        )
    if _measured:
        terminalreporter.section("measured")
    for line in _measured:
        terminalreporter.write_line(line)
