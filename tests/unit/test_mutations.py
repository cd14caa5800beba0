"""The controls that `scripts/test mutations` switches off are still where it looks for them, and so is what notices."""

from pathlib import Path

import pytest
from tests.security.conftest import CATALOGUE
from tests.support.cases import CASES
from tests.support.mutation import Mutation
from tests.support.mutations import MUTATIONS
from tests.support.switches import Rules, Switch, Text

from space.layout import Layout
from space.net import nft
from space.net.nft import Reach
from space.proxy import edge, egress, ingress

ROOT = Path(__file__).parents[2]
LAYOUT = Layout(Path("/srv/space"), "ab12", 0x7000_0000)
CONFIGS = {
    "edge.yaml": edge.config(LAYOUT, "127.0.0.1", 8080, None),
    "ingress.yaml": ingress.config(LAYOUT),
    "egress.yaml": egress.config(LAYOUT, Path("/etc/ssl/certs/ca-certificates.crt")),
}


def _is_there(switch: Switch) -> bool:
    match switch:
        case Text(file, old, new):
            text = CONFIGS.get(file) or switch.path(ROOT).read_text()
            return old in text and old != new
        case Rules(without, _, slot):
            rules = nft.slot_ruleset("100.64.0.2", "100.64.0.3") if slot else nft.gateway_ruleset(LAYOUT, Reach())
            return all(text in rules for text in without)
        case _:
            return True


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.control)
def test_a_control_is_where_it_was(mutation: Mutation) -> None:
    assert CATALOGUE
    assert all(map(_is_there, mutation.changes))
    assert mutation.cases or mutation.tests
    assert set(mutation.cases) <= set(CASES)
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), test


def test_no_control_is_there_twice() -> None:
    assert len({mutation.control for mutation in MUTATIONS}) == len(MUTATIONS)
