"""Which sandbox a request means, and which signed URL belongs to which token; nothing but the two rules."""

import base64
import hashlib
import string
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.e2b import signatures
from space.e2b.addressing import Target, target
from space.wire.refusal import Refusal

ID, OTHER = "a1" * 10, "b2" * 10


def _of(host: str = "", domain: str | None = None, **headers: str) -> Target | None:
    raw = {b"host": host.encode("latin-1")} if host else {}
    return target(raw | {f"e2b-sandbox-{k}".encode(): v.encode("latin-1") for k, v in headers.items()}, domain)


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        (f"8080-{ID}.example.com", None), (f"8080-{ID}.localhost:9000", None), (f"8080-{ID.upper()}.Example.COM", None),
        (f"8080-{ID}-0f3c.example.com", None), (f"8080-{ID}.example.com:8443", "example.com:8443"),
        (f"8080-{ID}.example.com", "Example.com"), (f"8080-{ID}.example.com.", "example.com"),
        (f"8080-{ID}.example.com:9", "example.com:8443"),
    ],
)  # fmt: skip
def test_a_name_says_port_and_sandbox(host: str, domain: str | None) -> None:
    assert _of(host, domain) == Target(ID, 8080, own_name=True)


@pytest.mark.parametrize(
    "host",
    [
        "", "example.com", "127.0.0.1:8080", "[::1]:8080", f"8080-{ID}", f"8080-{ID}:80", f"{ID}.example.com",
        "8080-short.x", f"x-{ID}.example.com", f"+80-{ID}.x", f"-80-{ID}.x", f"80--{ID}.x", f" 80-{ID}.x",
        f"8080.{ID}.x", f"a.8080-{ID}.x", f"\xb9-{ID}.x", f"80-{ID}-.x", f"80-{ID}.", f"80-{ID}_.x", f"80-{ID}-a-b.x",
    ],
)  # fmt: skip
def test_other_names_say_nothing(host: str) -> None:
    assert _of(host) is None


@pytest.mark.parametrize(
    "host", [f"80-{ID}.example.org", f"80-{ID}.evil-example.com", f"80-{ID}.a.example.com", f"80-{ID}.com"]
)
def test_below_a_domain_only_its_own_names_do(host: str) -> None:
    assert _of(host, "example.com") is None


def test_below_a_domain_an_id_that_nothing_has_is_a_sandbox_too() -> None:
    assert _of("80-gone.example.com", "example.com") == Target("gone", 80, own_name=True)


@pytest.mark.parametrize("port", ["0", "02280", "65536", "67816", "99999999999999999999"])
def test_a_port_has_one_spelling(port: str) -> None:
    with pytest.raises(Refusal) as caught:
        _of(f"{port}-{ID}.example.com")
    assert (caught.value.status, caught.value.message, caught.value.sandbox) == (400, "Invalid sandbox port", ID)
    with pytest.raises(Refusal):
        _of(id=ID, port=port)


@pytest.mark.parametrize("port", ["+80", "8 0", "80.", "0x50", "80,81", "\xb2", "-1", "eighty"])
def test_nor_does_a_header_have_another(port: str) -> None:
    with pytest.raises(Refusal):
        _of(id=ID, port=port)


def test_headers_say_it_where_the_name_does_not() -> None:
    assert _of("localhost:8080", id=ID) == Target(ID, 49983, own_name=False)
    assert _of("localhost:8080", id=f" {ID} ", port=" 49999 ") == Target(ID, 49999, own_name=False)
    assert _of("sandbox.example.com", "example.com", id=f"{ID}-0f3c", port="1") == Target(ID, 1, own_name=False)
    assert _of("localhost", port="80") is None
    assert _of("localhost", id="") is None


def test_the_name_wins_over_the_headers() -> None:
    assert _of(f"80-{ID}.example.com", id=OTHER, port="81") == Target(ID, 80, own_name=True)


@given(st.text(alphabet=string.printable, max_size=80), st.text(alphabet=string.printable, max_size=30))
def test_whatever_is_sent_a_target_is_plain(host: str, port: str) -> None:
    try:
        found = _of(host, id=ID, port=port)
    except Refusal:
        return
    assert found is not None
    assert 1 <= found.port <= 65535
    assert set(found.sandbox) <= set(string.ascii_lowercase + string.digits)


def _sign(path: str, operation: str, user: str, token: str, expiry: str = "") -> str:
    text = f"{path}:{operation}:{user}:{token}" + (f":{expiry}" if expiry else "")
    return "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


TOKENS = [("one", "1" * 64), ("two", "2" * 64), ("gone", "")]


def _find(method: str, query: str, path: bytes = b"/files") -> str | None:
    asked = signatures.signed(method, path, query.encode())
    return None if asked is None else signatures.find(asked, TOKENS)


def _query(**fields: str) -> str:
    return urlencode(fields)


@pytest.mark.parametrize("file", ["/tmp/a b", "ünï", "a&b=c", "a+b%2F", ""])
@pytest.mark.parametrize("user", ["", "user", "root"])
@pytest.mark.parametrize("expiry", ["", "1700000000"])
def test_a_signature_leads_to_its_token(file: str, user: str, expiry: str) -> None:
    fields = {"path": file} | ({"username": user} if user else {})
    fields |= {"signature_expiration": expiry} if expiry else {}
    for owner, token in TOKENS[:2]:
        for method, operation in (("GET", "read"), ("HEAD", "read"), ("POST", "write")):
            query = _query(**fields, signature=_sign(file, operation, user, token, expiry))
            assert _find(method, query) == owner
            assert _find("POST" if operation == "read" else "GET", query) is None
    assert _find("GET", _query(**fields, signature=_sign(file, "read", user, "", expiry))) is None, "no token signs"


def test_anything_changed_leads_nowhere() -> None:
    signature = _sign("/a", "read", "", "1" * 64, "1700000000")
    good = {"path": "/a", "signature": signature, "signature_expiration": "1700000000"}
    assert _find("GET", _query(**good)) == "one"
    for change in (
        {"path": "/b"}, {"username": "root"}, {"signature_expiration": "1700000001"}, {"signature_expiration": ""},
        {"signature": signature[:-1]}, {"signature": signature + "="}, {"signature": signature.lower()},
    ):  # fmt: skip
        assert _find("GET", _query(**(good | change))) is None, change
    assert _find("GET", _query(**good), b"/files/") is None
    assert _find("DELETE", _query(**good)) is None


@pytest.mark.parametrize(
    "query", ["", "signature=", "xsignature=a", f"signature={'a' * 65}", "signature=v1_a&signature_expiration=1e9",
              "signature=v1_a&signature_expiration=-1", f"signature=v1_a&signature_expiration={'9' * 13}"]
)  # fmt: skip
def test_what_is_no_signed_url(query: str) -> None:
    assert signatures.signed("GET", b"/files", query.encode()) is None


def test_when_one_expires() -> None:
    asked = signatures.signed("GET", b"/files", b"signature=v1_a&signature_expiration=100")
    assert asked is not None
    assert (asked.expired(100.0), asked.expired(100.5)) == (False, True)
    asked = signatures.signed("GET", b"/files", b"signature=v1_a")
    assert asked is not None
    assert not asked.expired(1e12)


@given(st.binary(max_size=200))
def test_no_query_breaks_it(query: bytes) -> None:
    asked = signatures.signed("GET", b"/files", b"signature=v1_x&" + query)
    if asked is not None:
        assert signatures.find(asked, TOKENS) is None
