"""The guests' name server: what it says to one question, whatever the question is."""

import asyncio
from collections.abc import Mapping

import dns.message
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.gateway import dns as server
from space.gateway.guests import Guest
from space.gateway.names import Names
from space.model.errors import Unavailable
from space.model.ids import SandboxId, new_id
from space.model.policy_document import parse


def _guest(policy: Mapping[str, object], names: Mapping[str, str] | None = None) -> Guest:
    return Guest(SandboxId(new_id()), "100.64.0.3", Names(names), parse(policy))


GUEST = _guest(
    {"deny": [{"host": "bad.wild.test"}], "allow": [{"host": "allowed.test"}, {"host": "*.wild.test"}]},
    {"198.18.0.7": "allowed.test"},
)


def _ask(question: bytes, guest: Guest | None = GUEST, give: server.Give | None = None) -> bytes | None:
    async def nobody(_guest: Guest, name: str) -> str:
        raise Unavailable(f"nobody records {name}")

    return asyncio.run(server.answer(question, guest, give or nobody, lambda *_: None))


def _query(name: str, kind: str = "A") -> bytes:
    return dns.message.make_query(name, kind).to_wire()


def _reply(name: str, kind: str = "A", guest: Guest | None = GUEST) -> tuple[str, list[str]]:
    answer = _ask(_query(name, kind), guest)
    assert answer is not None
    message = dns.message.from_wire(answer)
    return dns.rcode.to_text(message.rcode()), [str(record) for rrset in message.answer for record in rrset]


def test_an_allowed_name_has_its_address_and_no_other_data() -> None:
    assert _reply("allowed.test") == ("NOERROR", ["198.18.0.7"])
    assert _reply("Allowed.TEST.") == ("NOERROR", ["198.18.0.7"])
    for kind in ("AAAA", "HTTPS", "SVCB", "TXT", "MX", "CNAME", "NS", "SOA", "ANY", "PTR"):
        assert _reply("allowed.test", kind) == ("NOERROR", []), kind


@pytest.mark.parametrize(
    "name", ["denied.test", "wild.test", "bad.wild.test", "allowed.test.evil", "test", ".", "7.0.18.198.in-addr.arpa"]
)
def test_other_names_are_refused(name: str) -> None:
    assert _reply(name) == ("REFUSED", [])


def test_a_guest_that_nobody_told_of_is_refused() -> None:
    assert _reply("allowed.test", guest=None) == ("REFUSED", [])


def test_a_name_that_is_not_recorded_is_not_told() -> None:
    assert _reply("new.wild.test") == ("SERVFAIL", [])


def test_the_case_of_the_question_comes_back() -> None:
    """Resolvers that mix case (0x20) take only an answer that has theirs."""
    answer = _ask(_query("aLLowed.tEst"))
    assert answer is not None
    assert dns.message.from_wire(answer).question[0].name.to_text() == "aLLowed.tEst."


def test_a_refusal_is_told_with_the_name() -> None:
    told: list[tuple[str, str | None]] = []

    async def nobody(_guest: Guest, _name: str) -> str:
        raise AssertionError("asked for an address")

    asyncio.run(server.answer(_query("denied.test"), GUEST, nobody, lambda _, name, why: told.append((name, why))))
    assert told == [("denied.test", "no rule of the policy is about this name")]


@given(st.binary(max_size=600))
def test_anything_gets_a_short_answer_or_none(data: bytes) -> None:
    """Cases D-17, D-18: no exception, and never an address for what is not exactly an allowed name."""
    answer = _ask(data)
    assert answer is None or len(answer) <= 1232
    if answer is not None and len(answer) > 12 and dns.message.from_wire(answer).answer:
        assert b"\x07allowed\x04test\x00" in data.lower()


@given(st.binary(min_size=1, max_size=63), st.binary(min_size=1, max_size=63))
def test_only_plain_labels_are_names(first: bytes, second: bytes) -> None:
    """D-17: a label with a dot, a NUL or anything but letters, digits and hyphens in it matches no `*.suffix`."""
    wire = bytes([len(first)]) + first + b"\x04wild\x04test\x00"
    answer = _ask(b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + wire + b"\x00\x01\x00\x01")
    assert answer is not None
    plain = first.isalnum() and first.isascii()
    if not plain and not set(first) <= set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"):
        assert answer[3] & 15 in (dns.rcode.REFUSED, dns.rcode.FORMERR)
    del second
