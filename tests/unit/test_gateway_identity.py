"""The names of one request: all one, in plain spelling, or none."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.gateway.guests import Guest, Guests
from space.gateway.identity import Asked, EgressDenied, authority_of, guest_of, request_of
from space.gateway.names import Names
from space.model.errors import Misdirected, SpaceError
from space.model.ids import SandboxId, new_id
from space.model.policy import Request

GUEST = Guest(SandboxId(new_id()), "100.64.0.3", Names({"198.18.0.7": "allowed.test", "198.18.0.8": "other.test"}))
GOOD = Asked(
    source="100.64.0.3", source_port=40000, destination="198.18.0.7", destination_port=443, chain="tls",
    sni="allowed.test", authority="allowed.test", method="GET", path="/x?y", upgrade=None, alone=True,
)  # fmt: skip


def _judge(**changes: object) -> Request:
    return request_of(GUEST, dataclasses.replace(GOOD, **changes))  # type: ignore[arg-type] # fields by name


def test_a_request_whose_names_are_one() -> None:
    assert _judge() == Request("https", "allowed.test", 443, "GET", "/x?y", None)
    assert _judge(authority="ALLOWED.test.:443") == _judge()
    plain = _judge(chain="plain", sni="", destination_port=80)
    assert (plain.protocol, plain.port) == ("http", 80)
    assert authority_of(plain) == "allowed.test"
    assert authority_of(_judge(destination_port=8443)) == "allowed.test:8443"


@pytest.mark.parametrize(
    "changes",
    [
        {"chain": ""}, {"chain": "TLS"}, {"destination": "198.18.0.9"}, {"destination": "203.0.113.20"},
        {"destination": ""}, {"sni": ""}, {"sni": "other.test"}, {"sni": "ALLOWED.test"}, {"sni": "allowed.test."},
        {"authority": ""}, {"authority": "other.test"}, {"authority": "allowed.test,other.test"},
        {"authority": "other.test@allowed.test"}, {"authority": "allowed.test:80"}, {"authority": "allowed.test:0443"},
        {"authority": "allowed.test:"}, {"authority": "[allowed.test]"}, {"authority": "allowed.test%20"},
        {"authority": "allowed.test\x00.other.test"}, {"authority": "allowed.test/"}, {"authority": " allowed.test"},
        {"authority": "198.18.0.7"}, {"authority": "allowed。test"}, {"authority": "allowed.test.."},
        {"path": "*"}, {"path": ""}, {"path": "https://other.test/"}, {"path": "/" + "a" * 20000}, {"path": "/é"},
        {"chain": "plain", "authority": "other.test"},
    ],
)  # fmt: skip
def test_a_request_whose_names_differ(changes: dict[str, object]) -> None:
    """EGRESS C2, H4, cases T-01 to T-03, D-16, D-17, H-02, H-10."""
    with pytest.raises((EgressDenied, Misdirected)):
        _judge(**changes)


def test_a_slot_that_nobody_told_of() -> None:
    with pytest.raises(EgressDenied):
        guest_of(Guests(), GOOD)


@given(st.text(max_size=80), st.text(max_size=80))
def test_nothing_but_the_name_itself_passes(sni: str, authority: str) -> None:
    try:
        found = _judge(sni=sni, authority=authority)
    except SpaceError:
        return
    assert sni == "allowed.test"
    assert authority.lower().removesuffix(":443").rstrip(".") == "allowed.test"
    assert found.host == "allowed.test"
