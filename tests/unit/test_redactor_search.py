"""Secrets in a stream: found wherever the pieces are cut, and nothing else touched."""

import base64
import itertools
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.redactor.needles import needles
from space.redactor.search import MARK, Search, Stream

SECRETS = ("s3cret-value/with+odd=chars", 'another one "quoted" & <html>')


def _through(search: Search, pieces: list[bytes]) -> bytes:
    stream = Stream(search)
    return b"".join([*(stream.take(piece) for piece in pieces), stream.finish()])


@given(
    st.lists(st.one_of(st.binary(max_size=20), st.sampled_from([secret.encode() for secret in SECRETS])), max_size=12),
    st.lists(st.integers(0, 200), max_size=10),
)
def test_no_cut_hides_a_secret_or_changes_anything_else(parts: list[bytes], cuts: list[int]) -> None:
    search = Search(needles(SECRETS))
    whole = b"".join(parts)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[first:last] for first, last in itertools.pairwise(edges)]
    out = _through(search, pieces)
    assert out == search.replace(whole)
    assert not any(secret.encode() in out for secret in SECRETS)


@given(st.text(min_size=6, max_size=40), st.binary(max_size=5), st.binary(max_size=5))
def test_every_usual_form_is_found(secret: str, before: bytes, after: bytes) -> None:
    search = Search(needles([secret]))
    raw = secret.encode("utf-8", "surrogatepass") if secret.isprintable() else None
    if raw is None:
        return
    for shown in (raw, quote(secret, safe="").encode(), json.dumps(secret)[1:-1].encode()):
        if len(shown) >= 6:
            assert MARK in search.replace(b"<" + shown + b">")
    encoded = base64.b64encode(before + raw + after)
    if len(raw) >= 8:
        assert search.replace(encoded) != encoded


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"abc"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_both_alphabets_of_base64_at_every_offset(before: bytes, encode: Callable[[bytes], bytes]) -> None:
    secret = ">>>???>>>???"  # bits that the alphabets write differently
    assert MARK in Search(needles([secret])).replace(encode(before + secret.encode() + b"z"))


def test_a_short_secret_is_not_searched_for() -> None:
    assert needles(["abc"]) == ()
    assert Search(()).replace(b"abc") == b"abc"
    assert _through(Search(()), [b"a", b"b"]) == b"ab"


@pytest.mark.parametrize("cut", range(1, 27))
def test_a_secret_that_is_a_part_of_another(cut: int) -> None:
    long, short = b"prefix-secret-and-the-rest", b"prefix-secret"
    search = Search(sorted((long, short), key=len, reverse=True))
    assert _through(search, [b"x" + long[:cut], long[cut:] + b"y"]) == b"x" + MARK + b"y"
    assert (
        _through(search, [b"x" + short[: min(cut, 12)], short[min(cut, 12) :] + b"-and-y"]) == b"x" + MARK + b"-and-y"
    )
