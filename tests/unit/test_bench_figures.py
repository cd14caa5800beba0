"""What is told of measured values."""

import math

import pytest
from bench.figures import Goal, Step, Taken, percentile
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.lists(st.floats(min_value=0, max_value=1e6), min_size=1)


@given(VALUES, st.integers(min_value=1, max_value=100))
def test_a_percentile_is_the_least_value_that_so_many_percent_do_not_exceed(values: list[float], percent: int) -> None:
    found = percentile(values, percent)
    assert found in values
    assert 100 * sum(value <= found for value in values) >= percent * len(values)
    assert 100 * sum(value < found for value in values) < percent * len(values)


def test_a_line_shows_its_median_as_a_multiple_of_its_floors() -> None:
    taken = Taken()
    for bare, ours in ((100.0, 150.0), (200.0, 240.0), (100.0, 130.0)):
        taken.note("bare", bare)
        taken.note("ours", ours)
    bare_line, our_line = taken.lines([Step("bare"), Step("ours", "bare"), Step("never measured", "bare")])
    assert (bare_line.count, bare_line.p50, bare_line.ratio) == (3, 100, None)
    assert (our_line.p50, our_line.p95, our_line.p99, our_line.ratio) == (150, 240, 240, 1.5)


def test_without_its_floor_a_line_has_no_ratio() -> None:
    taken = Taken()
    taken.note("ours", 1.0)
    (line,) = taken.lines([Step("ours", "bare")])
    assert line.ratio is None


@pytest.mark.parametrize(("value", "met"), [(60.0, True), (60.1, False), (math.nan, False)])
def test_a_goal_is_met_up_to_its_limit(value: float, met: bool) -> None:
    assert Goal("", value, 60).met is met


def test_what_was_not_measured_reaches_no_goal() -> None:
    assert not Goal("", Taken().median("ours"), 60).met
