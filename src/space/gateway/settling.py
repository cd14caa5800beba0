"""What follows from a guest's policy for packets and connections: what the worker has to make true."""

from collections.abc import Iterator
from ipaddress import IPv4Network

from space.gateway.flights import Flight
from space.gateway.guests import Guest
from space.model.policy import Policy, decide
from space.model.policy_reach import may_dial, proxy_refusal, raw_networks, tcp_ports
from space.wire import gateway as wire

_DNS_PORT = 53


def settle(guest: Guest) -> wire.Settled:
    """Return what has to be made true for a guest, by the policy that it has now.

    After a restart of this process a guest has connections that nobody here saw begin; they all end when its policy is
    set again, once.
    """
    return wire.Settled(
        raw=list(raw_targets(guest)),
        private=list(_declared(guest.policy)),
        end=guest.flights.ports_where(lambda flight: not still_allowed(guest.policy, flight)),
    )


def still_allowed(policy: Policy, flight: Flight) -> bool:
    """Tell whether a request that was let through would be let through now, and by the same way."""
    if flight.via != policy.upstream_proxy or proxy_refusal(policy) is not None:
        return False
    request = flight.request
    verdict = decide(policy, request)
    allowed = verdict.allowed or (verdict.ask and flight.rule is None)  # a person's answer holds until it ends
    return allowed and may_dial(policy, verdict, flight.address, request.protocol, request.port)


def raw_targets(guest: Guest) -> Iterator[wire.RawTarget]:
    """Return all that goes to the relay: raw ports of the names it was given, and networks."""
    for address, name in guest.names.given():
        yield from raw_targets_of(guest.policy, address, name)
    for network, ports in raw_networks(guest.policy):
        yield from (wire.RawTarget(cidr=network, first_port=one.first, last_port=one.last) for one in ports)


def _declared(policy: Policy) -> Iterator[wire.RawTarget]:
    """Return the networks in which rules expect the names that they allow, and whom the gateway itself dials."""
    proxy = policy.upstream_proxy
    if proxy is not None and proxy.network is not None:
        yield wire.RawTarget(cidr=proxy.network, first_port=proxy.port, last_port=proxy.port)
    for server in policy.dns_servers:
        yield wire.RawTarget(cidr=IPv4Network(server), first_port=_DNS_PORT, last_port=_DNS_PORT)
    for rule in policy.rules:
        if rule.action == "allow" and rule.host is not None and rule.network is not None:
            for protocol in rule.protocols:
                for ports in rule.ports_of(protocol):
                    yield wire.RawTarget(cidr=rule.network, first_port=ports.first, last_port=ports.last)


def raw_targets_of(policy: Policy, address: str, name: str) -> Iterator[wire.RawTarget]:
    """Return the raw ports of one name, at its synthetic address."""
    for ports in tcp_ports(policy, name):
        yield wire.RawTarget(cidr=IPv4Network(address), first_port=ports.first, last_port=ports.last)
