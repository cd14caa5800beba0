"""Each control switched off alone: some attack must succeed then, else nothing shows that the control is needed.

Run by `scripts/test mutations`; not part of the ordinary run, since it takes the product apart on purpose.
"""

import pytest
from tests.support.arena import Mutable
from tests.support.cases import CASES
from tests.support.mutations import MUTATIONS, Mutation

pytestmark = pytest.mark.mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.control)
async def test_some_case_notices(mutable: Mutable, mutation: Mutation) -> None:
    red: list[str] = []
    async with mutation.off(mutable.arena, mutable.code):
        for ident in mutation.cases:
            try:
                await CASES[ident].attempt(mutable.arena)
            except (AssertionError, TimeoutError):
                red.append(ident)
                break
    await mutable.heal()
    mutable.table.append((mutation.control, red))
    assert red, f"without this, all of {', '.join(mutation.cases)} stay green"
