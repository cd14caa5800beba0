"""The part of Dockerfiles that is understood, and that the rest is refused with its line."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.model.build import Step, StepKind
from space.model.dockerfile import Copy, parse
from space.model.errors import InvalidArgument

FILE = r"""
# syntax=anything
FROM debian:12
LABEL a=b
ENV A=1 B="two words" C='$A' \
    D=x\ y
ENV E a value
RUN apt-get update && \
    # a comment between
    apt-get install -y git

RUN ["touch", "a b"]
COPY --chown=app:staff --chmod=0755 main.py lib/ /srv/
COPY ["with space", "/to/"]
WORKDIR "/srv/my app"
USER app
ENTRYPOINT ["serve", "--port", "80"]
CMD ["-v"]
"""


def step(kind: StepKind, *args: str) -> Step:
    return Step(kind, args)


def test_a_file_is_read() -> None:
    found = parse(FILE)
    assert found.source == "debian:12"
    assert found.steps == (
        step(StepKind.ENV, "A", "1", "B", "two words", "C", "$A", "D", "x y"),
        step(StepKind.ENV, "E", "a value"),
        step(StepKind.RUN, "apt-get update &&     apt-get install -y git"),
        step(StepKind.RUN, "touch 'a b'"),
        Copy("main.py", "/srv/", "app:staff", "0755"),
        Copy("lib/", "/srv/", "app:staff", "0755"),
        Copy("with space", "/to/", "", ""),
        step(StepKind.WORKDIR, "/srv/my app"),
        step(StepKind.USER, "app"),
    )
    assert found.start == "serve --port 80 -v"
    assert found.passed_over == ("LABEL (line 4)",)


@pytest.mark.parametrize(
    ("end", "start"),
    [
        ("", None),
        ("CMD serve $PORT", "serve $PORT"),
        ('CMD ["a", "b c"]', "a 'b c'"),
        ("CMD []", None),
        ("CMD a\nCMD b", "b"),
    ],
)
def test_what_is_started(end: str, start: str | None) -> None:
    assert parse(f"FROM base\n{end}").start == start


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no FROM"),
        ("RUN x", "Line 1: RUN comes before FROM"),
        ("FROM a\nFROM b", "Line 2: a second FROM"),
        ("FROM a AS b", "one name"),
        ("FROM a\nADD x y", "Line 2: ADD is not supported"),
        ("FROM a\nARG x", "ARG is not supported"),
        ("FROM a\nHEALTHCHECK CMD x", "HEALTHCHECK"),
        ("FROM a\nRUN --mount=type=cache x", "no flags"),
        ("FROM a\nCOPY --from=b x y", "--from"),
        ("FROM a\nCOPY --chmod=u+x x y", "--chmod"),
        ("FROM a\nCOPY x", "sources and a target"),
        ("FROM a\nCOPY x y z", "ends with /"),
        ("FROM a\nCOPY <<EOF /x", "text of the file"),
        ("FROM a\nENV 1A=b", "ENV"),
        ("FROM a\nENV A=b c", "no NAME=value"),
        ("FROM a\nUSER a b", "one argument"),
        ("FROM a\nRUN", "RUN"),
        ("FROM a\n\n  +x", "Line 3"),
    ],
)
def test_the_rest_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        parse(text)


@given(st.text(alphabet="FROMRUNCOPYENV ab=\"'\\\n[]#$-{},", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for kind in ("", "COPY ", "ENV ", "USER ", "RUN "):
        with contextlib.suppress(InvalidArgument):
            parse(f"FROM a\n{kind}{text}")
