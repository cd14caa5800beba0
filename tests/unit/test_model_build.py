"""Steps of builds: what they say, what state they leave, and the keys of their layers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.model.build import (
    DEFAULT_PATH,
    State,
    Step,
    StepKind,
    after,
    changes_disk,
    expanded,
    first_key,
    last_key,
    next_key,
    read_step,
)
from space.model.errors import InvalidArgument


def step(kind: str, *args: str, files: str | None = None) -> Step:
    return read_step(kind, args, files, force=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("$A", "1"),
        ("${A}b$A", "1b1"),
        ("$AB", ""),
        ("$A:/bin", "1:/bin"),
        (r"\$A", "$A"),
        ("${NO:-else}", "else"),
        ("${A:-else}", "1"),
        ("${A:+then}", "then"),
        ("${NO:+then}", ""),
        ("$", "$"),
        ("$1", "$1"),
        ("${A", "${A"),
        ("$$A", "$1"),
    ],
)
def test_variables_are_what_they_stand_for(text: str, value: str) -> None:
    assert expanded(text, {"A": "1"}) == value


@given(st.text(alphabet="ab {}:-+\\", max_size=30))
def test_a_text_without_a_dollar_stays_as_it_is(text: str) -> None:
    assert expanded(text, {"a": "1"}) == text


def test_the_state_follows_the_steps() -> None:
    state = State()
    for one in (
        step("ENV", "A", "1", "PATH", "/opt/bin:$PATH"),
        step("env", "B", "$A-2"),
        step("RUN", "exit 1"),
        step("WORKDIR", "sub/../app"),
        step("WORKDIR", "$A"),
        step("USER", "app:staff"),
    ):
        state = after(state, one)
    assert state == State("app", "/home/user/app/1", {"A": "1", "B": "1-2", "PATH": f"/opt/bin:{DEFAULT_PATH}"})
    assert after(state, step("WORKDIR", "/../x/")).workdir == "/x"


@pytest.mark.parametrize(
    ("kind", "args", "files"),
    [
        ("FROM", ["x"], None),
        ("RUN", [], None),
        ("RUN", ["a", "b", "c"], None),
        ("RUN", [" "], None),
        ("RUN", ["a\0b"], None),
        ("RUN", ["x" * 100_000], None),
        ("COPY", ["a", "b"], None),
        ("COPY", ["a", "b"], "../up"),
        ("COPY", ["a", "b"], ".."),
        ("COPY", ["a", "b"], "a/b"),
        ("COPY", ["a", "b", "", "rwx"], "abc"),
        ("COPY", ["a"], "abc"),
        ("ENV", ["A"], None),
        ("ENV", ["A", "1", "B"], None),
        ("ENV", ["A=B", "1"], None),
        ("ENV", ["", "1"], None),
        ("WORKDIR", [], None),
        ("USER", [""], None),
    ],
)
def test_steps_that_make_no_sense_are_refused(kind: str, args: list[str], files: str | None) -> None:
    with pytest.raises(InvalidArgument):
        read_step(kind, args, files, force=False)


def test_an_environment_has_its_bound() -> None:
    state = after(State(), step("ENV", "A", "x" * 40_000))
    with pytest.raises(InvalidArgument, match="environment"):
        after(state, step("ENV", "B", "x" * 40_000))


def test_only_a_change_of_path_makes_an_env_step_write() -> None:
    assert not changes_disk(State(), step("ENV", "A", "1"))
    assert changes_disk(State(), step("ENV", "PATH", "/opt:$PATH"))
    for kind in ("RUN", "WORKDIR", "USER"):
        assert changes_disk(State(), step(kind, "x"))


def test_a_key_is_of_everything_before_and_nothing_else() -> None:
    key = first_key("project", "sha256:1")
    run = step("RUN", "make")
    same = [next_key(key, State(), one) for one in (run, Step(StepKind.RUN, ("make",), force=True))]
    assert same[0] == same[1], "doing it again makes the same layer"
    others = [
        first_key("other", "sha256:1"),
        first_key("project", "sha256:2"),
        next_key(first_key("other", "sha256:1"), State(), run),
        next_key(key, State(user="root"), run),
        next_key(key, State(env={"A": "1"}), run),
        next_key(key, State(), step("RUN", "make", "root")),
        next_key(key, State(), step("RUN", "make root")),
        next_key(key, State(), step("COPY", "make", "root", files="a")),
        next_key(key, State(), step("COPY", "make", "root", files="b")),
        last_key(same[0], State(), None, None, "512"),
        last_key(same[0], State(), "a", None, "512"),
        last_key(same[0], State(), None, "a", "512"),
        last_key(same[0], State(), None, None, "1024"),
        key,
        same[0],
    ]
    assert all(a != b for a, b in itertools.combinations(others, 2))
