"""The range for attacks from inside microVMs, and the table of what they came to."""

import os
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.support import cases_life, cases_load, cases_names, cases_packets, cases_requests, cases_secrets
from tests.support.cases import CASES
from tests.support.deployment import Deployment
from tests.support.internet import internet
from tests.support.range import CANARY, POLICY, POLICY_B, Range

CATALOGUE = (cases_names, cases_requests, cases_packets, cases_load, cases_secrets, cases_life)
"""Importing them enters their cases."""
_verdicts: list[tuple[str, str, str]] = []


@pytest.fixture(scope="session")
async def arena() -> AsyncGenerator[Range]:
    """A deployment on the tests' internet, with the attacker A and its neighbour B."""
    if os.getuid() != 0:
        pytest.skip("needs root: SPACE makes namespaces, mounts and processes of other users")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        async with internet(Path(folder)) as net:
            space = Deployment(settings=net.settings)
            await space.up()
            try:
                status, out, err = await space.cli("template", "build", "base")
                assert status == 0, out + err
                made = Range(space, net)
                await made.keep_secret("KEY", CANARY)
                made.a, made.b = await made.make(POLICY), await made.make(POLICY_B)
                await made.control()
                yield made
                for sandbox in (made.a, made.b):
                    await space.delete(sandbox)
            finally:
                await space.down()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> AsyncGenerator[None]:  # type: ignore[misc] # a wrapper, not async
    """Note what each case came to."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    name = getattr(item, "callspec", None) and item.callspec.params.get("case_id")  # type: ignore[attr-defined]
    if name and (report.when == "call" or report.outcome != "passed"):
        verdict = {"passed": "held", "failed": "BROKEN" if report.when == "call" else "ERROR"}.get(
            report.outcome, "not run"
        )
        _verdicts.append((name, item.originalname, verdict))  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table: case, what was tried, verdict, by what it was judged."""
    if not _verdicts:
        return
    terminalreporter.section("attacks")
    for name, test, verdict in _verdicts:
        case = CASES[name]
        again = "" if test == "test_attack" else " (again)"
        terminalreporter.write_line(f"{name:<22}{verdict:<8}{case.tried}{again}  [{case.oracle}]")
