"""Who asks for what: the facts of one request that must be one, before any policy is looked at.

The guest is the slot that the connection came from. The name is the one behind the synthetic address that it dialled;
the name in the TLS handshake and the request's authority must be the same, written plainly. What differs is refused and
not repaired: whatever is between two readings of a request is a way around a policy.
"""

import dataclasses
import re

from space.gateway.guests import Guest, Guests
from space.model.errors import Misdirected, SpaceError
from space.model.policy import Protocol, Request
from space.model.policy_names import InvalidName, canonical_host

_PROTOCOLS: dict[str, Protocol] = {"tls": "https", "plain": "http"}
_STANDARD_PORT: dict[Protocol, int] = {"https": 443, "http": 80, "tcp": 0}
_AUTHORITY = re.compile(r"([A-Za-z0-9.-]{1,254})(?::([1-9][0-9]{0,4}))?")
_MAX_PATH = 16_384


class EgressDenied(SpaceError):
    """The policy does not let this leave, or it cannot be told what it is."""

    code, status, title = "egress_denied", 403, "Not allowed"


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """One request as the proxy reports it.

    `chain` is `tls` or `plain`: by which part of its configuration the request came. `authority` is `Host` or
    `:authority` as the guest wrote it, `path` the target with its query, `upgrade` that header. `alone`: by HTTP/1,
    where a connection carries one request at a time.
    """

    source: str
    source_port: int
    destination: str
    destination_port: int
    chain: str
    sni: str
    authority: str
    method: str
    path: str
    upgrade: str | None
    alone: bool


def guest_of(guests: Guests, asked: Asked) -> Guest:
    """Return whose request it is; raises EgressDenied for a slot that nobody told of."""
    guest = guests.at(asked.source)
    if guest is None:
        raise EgressDenied("The gateway does not know this sandbox; it may be starting or ending.")
    return guest


def request_of(guest: Guest, asked: Asked) -> Request:
    """Return what a policy is asked about; raises EgressDenied, or Misdirected where names differ."""
    protocol = _PROTOCOLS.get(asked.chain)
    if protocol is None:
        raise EgressDenied("The request came by an unknown way.")
    name = guest.names.name_of(asked.destination)
    if name is None:
        raise EgressDenied("This address stands for no name; names are resolved by the sandbox's own name server.")
    if protocol == "https" and asked.sni != name:
        raise Misdirected(f"The connection was made to {name}, but its TLS handshake names another.")
    _check_authority(asked, name)
    if not asked.path.startswith("/") or len(asked.path) > _MAX_PATH or not asked.path.isascii():
        raise EgressDenied("The request's target is not a plain path.")
    return Request(protocol, name, asked.destination_port, asked.method, asked.path, asked.upgrade)


def _check_authority(asked: Asked, name: str) -> None:
    parts = _AUTHORITY.fullmatch(asked.authority)
    try:
        if parts is not None and canonical_host(parts[1]) == name:
            if parts[2] is None or int(parts[2]) == asked.destination_port:
                return
            raise Misdirected(
                f"The connection was made to port {asked.destination_port}, the request names {parts[2]}."
            )
    except InvalidName:
        pass
    raise Misdirected(f"The connection was made to {name}, but the request's Host names another.")


def authority_of(request: Request) -> str:
    """Return the authority that is sent: the policy's name, with the port where it is not the protocol's own."""
    if request.port == _STANDARD_PORT[request.protocol]:
        return request.host
    return f"{request.host}:{request.port}"
