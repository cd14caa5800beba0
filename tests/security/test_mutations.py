"""Each control switched off alone: some attack must succeed then, else nothing shows that the control is needed.

Run by `scripts/test mutations`; not part of the ordinary run, since it takes the product apart on purpose. An attack
counts only where A and B could still do what they may just before it: what is broken altogether stops attacks, too.
"""

import traceback
from pathlib import Path

import pytest
from tests.support.arena import Mutable
from tests.support.cases import CASES
from tests.support.mutation import Mutation
from tests.support.mutations import MUTATIONS

pytestmark = pytest.mark.mutation
Notice = list[tuple[str, str, str]]


@pytest.mark.parametrize("mutation", [one for one in MUTATIONS if one.tests], ids=lambda mutation: mutation.control)
async def test_some_test_notices(copy: tuple[Path, Path], noticed: Notice, mutation: Mutation) -> None:
    red, why = await mutation.noticed(*copy) or ("", "")
    noticed.append((mutation.control, red, why))
    assert red, f"without this, all of {', '.join(mutation.tests)} stay green"


@pytest.mark.parametrize("mutation", [one for one in MUTATIONS if one.cases], ids=lambda mutation: mutation.control)
async def test_some_case_notices(mutable: Mutable, noticed: Notice, mutation: Mutation) -> None:
    red, why = "", ""
    async with mutation.off(mutable.arena, mutable.code):
        for ident in mutation.cases:
            try:
                await CASES[ident].attempt(mutable.arena)
            except (AssertionError, TimeoutError) as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                red, why = ident, f"{place.line}: {error}".partition("\n")[0]
                break
    await mutable.heal()
    noticed.append((mutation.control, red, why))
    assert red, f"without this, all of {', '.join(mutation.cases)} stay green"
