"""The core of the catalogue again, after everything that changes what the gateway knows: none of it may open a way."""

from collections.abc import AsyncGenerator

import pytest
from tests.support.cases import CASES
from tests.support.range import CANARY, POLICY, Range

CORE = [ident for ident, case in CASES.items() if case.core]
CHANGES = ("a killed gateway", "a fork", "a new policy", "a killed proxy", "a killed worker", "a restore")
SHORT = 2
"""So many of them in an ordinary run; all in that of full size."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each case after each change."""
    if "change" in metafunc.fixturenames:
        changes = CHANGES if metafunc.config.getoption("--full") else CHANGES[:SHORT]
        metafunc.parametrize("change", changes, scope="module")


@pytest.fixture(scope="module")
async def changed(arena: Range, change: str) -> AsyncGenerator[Range]:
    """The range after the change; afterwards A is who it was."""
    original, child = arena.a, ""
    match change:
        case "a new policy":
            await arena.allow(arena.a, {"allow": [{"host": "denied.test"}]})
            await arena.allow(arena.a, POLICY)
        case "a killed gateway":
            await arena.kill("gateway")
        case "a killed proxy":
            await arena.kill("egress")
        case "a killed worker":
            await arena.kill("worker")
        case "a restore":
            for verb in ("suspend", "restore"):
                answer = await arena.space.http.post(f"/v1/sandboxes/{arena.a}/{verb}", json={})
                assert answer.is_success, answer.text
        case _:
            answer = await arena.space.http.post(f"/v1/sandboxes/{arena.a}/fork", json={"count": 1})
            assert answer.is_success, answer.text
            child = arena.a = answer.json()["results"][0]["sandbox"]["id"]
            await arena.allow(child, POLICY)
            await arena.keep_secret("KEY", CANARY)
    await arena.until_allowed(arena.a)
    await arena.until_allowed(arena.b)
    yield arena
    arena.a = original
    if child:
        await arena.space.delete(child)


@pytest.mark.parametrize("case_id", CORE)
async def test_attack_again(changed: Range, case_id: str, change: str) -> None:
    assert change
    await CASES[case_id].attempt(changed)
