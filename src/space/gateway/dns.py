"""The guests' name server: one question, answered from the policy alone.

An allowed name gets the address that stands for it in this sandbox; nobody else is ever asked because of a guest's
question (a lookup would carry data out by itself). Every other type of an allowed name has no data; every other name,
and everything that is not one plain question, is refused.
"""

from collections.abc import Awaitable, Callable

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from space.gateway.guests import Guest
from space.model.errors import SpaceError
from space.model.policy_names import InvalidName, canonical_host
from space.model.policy_reach import may_resolve

TTL_S = 60
"""Short, so that a name refused by a new policy is asked for again soon; an address never means another name."""

MAX_QUESTION = 512
"""Bytes of a question; a name has 255 at most."""

_HEADER = 12
_QR, _OPCODE_SHIFT = 0x80, 3

Give = Callable[[Guest, str], Awaitable[str]]
"""Returns the address of a name in a sandbox, once it is recorded; raises SpaceError."""

Note = Callable[[Guest, str, str | None], None]
"""Told of each decision about a name: the guest, the name as asked for, and why it was refused or None."""


async def answer(question: bytes, guest: Guest | None, give: Give, note: Note) -> bytes | None:
    """Return the answer to a question of the guest; None to say nothing."""
    if len(question) < _HEADER or question[2] & _QR:
        return None  # not a question; an answer to an answer could go round in circles
    opcode = question[2] >> _OPCODE_SHIFT & 0xF
    if opcode != dns.opcode.QUERY:
        return _bare(question, dns.rcode.NOTIMP)
    try:
        query = dns.message.from_wire(question[:MAX_QUESTION], ignore_trailing=False)
        (asked,) = query.question
    except (dns.exception.DNSException, ValueError):
        return _bare(question, dns.rcode.FORMERR)
    if len(question) > MAX_QUESTION or query.answer or query.authority:
        return _bare(question, dns.rcode.FORMERR)
    reply = dns.message.make_response(query, recursion_available=True)
    reply.set_rcode(await _resolve(reply, asked, guest, give, note))
    return reply.to_wire()


async def _resolve(
    reply: dns.message.Message, asked: dns.rrset.RRset, guest: Guest | None, give: Give, note: Note
) -> dns.rcode.Rcode:
    """Put the answer into `reply` and return its code."""
    if guest is None or asked.rdclass != dns.rdataclass.IN:
        return dns.rcode.REFUSED
    text = asked.name.to_text(omit_final_dot=True)
    try:
        name = canonical_host(text)
    except InvalidName:
        # search domains make resolvers ask for single labels; that is no news
        if len(asked.name) > 2:
            note(guest, text, "not a name that a policy could allow")
        return dns.rcode.REFUSED
    if not may_resolve(guest.policy, name):
        note(guest, name, "no rule of the policy is about this name")
        return dns.rcode.REFUSED
    if asked.rdtype != dns.rdatatype.A:
        return dns.rcode.NOERROR
    try:
        address = guest.names.address_of(name) or await give(guest, name)
    except SpaceError as error:
        note(guest, name, str(error))
        return dns.rcode.REFUSED if error.status == 429 else dns.rcode.SERVFAIL
    note(guest, name, None)
    reply.answer.append(dns.rrset.from_text(asked.name, TTL_S, "IN", "A", address))
    return dns.rcode.NOERROR


def _bare(question: bytes, code: dns.rcode.Rcode) -> bytes:
    """Return an answer without any content: the question's id and kind, and a code."""
    flags = bytes([_QR | question[2] & 0x79, code])
    return question[:2] + flags + bytes(8)
