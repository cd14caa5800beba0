"""gateway.allowance: what one sandbox may waste in the long run, and for how long it is muted."""

from hypothesis import given
from hypothesis import strategies as st

from space.gateway.allowance import BURST, MUTED_S, PER_S, Allowance


def test_a_burst_passes_and_then_one_mute_follows() -> None:
    budget = Allowance()
    assert [budget.take(100) for _ in range(int(BURST))] == [0] * int(BURST)
    seconds = budget.take(100)
    assert BURST / 2 / PER_S < seconds <= MUTED_S
    assert [budget.take(100.3) for _ in range(50)] == [0] * 50, "those that were under way: it is muted already"
    assert budget.take(100 + seconds) == 0, "half of the burst is there again, less what was under way"
    assert Allowance().take(5) == 0


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 300)), max_size=60))
def test_the_long_run_is_bounded_whatever_is_under_way(waves: list[tuple[float, int]]) -> None:
    """A wave comes some time after the one before, unless the sandbox is muted by then, and is logged at once."""
    budget, now_s, passed = Allowance(), 0.0, 0
    for pause_s, size in waves:
        now_s = max(now_s + pause_s, budget.muted_until_s)
        for _ in range(size):
            seconds = budget.take(now_s)
            assert 0 <= seconds <= MUTED_S
        passed += size
    # beyond the burst and the rate only what was on its way when it was muted, which the next mutes make up for
    assert passed <= BURST + now_s * PER_S + 500


def test_a_mute_that_did_not_happen_is_asked_for_again() -> None:
    budget = Allowance()
    for _ in range(int(BURST)):
        budget.take(1)
    assert budget.take(1) > 0
    budget.muted_until_s = 0
    assert budget.take(1.01) > 0
