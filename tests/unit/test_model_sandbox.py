"""Limits of what may be asked for, ids, and errors on their way through problem+json."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.model import errors, ids
from space.model.errors import InvalidArgument, SpaceError, from_problem
from space.model.sandbox import MAX_ENV_BYTES, MAX_LABELS, check_short_labels, check_spec
from space.wire.problem import to_problem


@pytest.mark.parametrize(
    ("vcpus", "memory_mib", "env", "labels", "field"),
    [
        (0, 512, {}, {}, "vcpus"),
        (9, 512, {}, {}, "vcpus"),
        (1, 127, {}, {}, "memory_mib"),
        (1, 1 << 20, {}, {}, "memory_mib"),
        (1, 512, {"": "x"}, {}, "env"),
        (1, 512, {"a=b": "x"}, {}, "env"),
        (1, 512, {"a": "x\0y"}, {}, "env"),
        (1, 512, {"a": "x" * MAX_ENV_BYTES}, {}, "env"),
        (1, 512, {}, {"a": "\0"}, "labels"),
        (1, 512, {}, {"a": "é" * 32768}, "labels"),
    ],
)
def test_the_field_that_is_wrong_is_named(
    vcpus: int, memory_mib: int, env: dict[str, str], labels: dict[str, str], field: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^{field}"):
        check_spec(vcpus, memory_mib, env, labels)


@pytest.mark.parametrize(
    "labels",
    [{str(n): "" for n in range(MAX_LABELS + 1)}, {"": "x"}, {"a": "\0"}, {"a": "é" * 257}, {"a:b": "x"}],
)
def test_labels_of_our_own_surface_are_short(labels: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"^labels"):
        check_short_labels(labels)


def test_the_limits_themselves_are_allowed() -> None:
    check_spec(8, 16384, {"A": "b=c", "empty": ""}, {"": "", "a:b": "x" * 65_000})
    check_short_labels({"a": "x:y", "b": ""})


@given(st.text())
def test_only_our_alphabet_makes_an_id(text: str) -> None:
    assert ids.is_id(text) == (len(text) == 20 and all(c in "abcdefghijklmnopqrstuvwxyz0123456789" for c in text))
    assert not ids.is_id(text + "\n")


def test_new_ids_and_keys_have_their_form() -> None:
    made = {ids.new_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(map(ids.is_id, made))
    assert ids.is_api_key(ids.new_api_key())
    assert not ids.is_api_key(ids.new_api_key().upper())


def all_errors(cls: type[SpaceError]) -> list[type[SpaceError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in all_errors(child))]


@pytest.mark.parametrize("cls", all_errors(SpaceError), ids=lambda cls: cls.__name__)
def test_an_error_survives_the_way_through_problem_json(cls: type[SpaceError]) -> None:
    problem = to_problem(cls("what to do"))
    again = from_problem(problem.code, problem.detail)
    assert type(again) is cls
    assert (again.status, str(again)) == (problem.status, "what to do")


def test_no_two_errors_share_a_code() -> None:
    codes = [cls.code for cls in all_errors(errors.SpaceError)]
    assert len(codes) == len(set(codes))


def test_every_finer_code_keeps_its_class_on_the_way() -> None:
    """A call that was overtaken, and whatever a worker refused so, was told to the caller as an internal error."""
    sources = (path.read_text() for path in (Path(__file__).parents[2] / "src").rglob("*.py"))
    used = {code for text in sources for code in re.findall(r'\bcode="(\w+)"', text)}
    assert "name_taken" in used
    for code in (*used, "sandbox_paused", "sandbox_suspending"):
        again = from_problem(code, "what to do")
        assert (type(again) is not SpaceError, again.slug) == (True, code)
    assert type(from_problem("overtaken", "")) is errors.Conflict
    assert type(from_problem("sandbox_failed", "")) is errors.SandboxFailed
