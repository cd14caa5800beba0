"""Every attack of the catalogue, from inside a microVM as root; what counts is what is on record outside of it."""

import pytest
from tests.support.cases import CASES
from tests.support.range import Range


@pytest.mark.parametrize("case_id", CASES)
async def test_attack(arena: Range, case_id: str) -> None:
    await CASES[case_id].attempt(arena)
