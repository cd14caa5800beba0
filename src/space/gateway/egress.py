"""The decision about one request that wants to leave, from what the proxy reports to the address that is dialled.

In this order: whose it is and what it is for (identity.py), whether its policy lets it (model/policy.py), whether the
sandbox's limits do, to which address the name resolves and whether that may be dialled (resolve.py), and last which
credentials go with it (inject.py). Nothing is looked up, and no secret is touched, for a request that is refused
before. Each outcome is an event.
"""

import dataclasses
import time
from collections.abc import Mapping
from ipaddress import IPv4Address

from space.gateway.asking import Asking
from space.gateway.audit import MAX_PATH, Audit
from space.gateway.flights import MAX_IN_FLIGHT, Flight
from space.gateway.guests import Guest, Guests
from space.gateway.identity import Asked, EgressDenied, authority_of, guest_of, request_of
from space.gateway.inject import Injection, Injector
from space.gateway.redaction import Redactions
from space.gateway.resolve import Resolver
from space.gateway.tunnels import Tunnels
from space.model.errors import SpaceError, Unavailable
from space.model.policy import Policy, Request, Verdict, decide
from space.model.policy_bindings import Binding
from space.model.policy_reach import declared_network, may_dial, proxy_refusal

_ATTEMPTS = 5


class TooManyRequests(SpaceError):
    """The sandbox has more requests under way than one may have."""

    code, status, title, retryable = "too_many_requests", 429, "Too many requests", True
    retry_after_s = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Let:
    """Let it through: to `dial` (`address:port`, our own loopback where it goes on through an upstream proxy), under
    `seq`, with `authority` and what is injected.

    `redact` names the secrets that its answer must not show; None where it is passed on as it is.
    """

    dial: str
    seq: int
    authority: str
    upgrade: bool
    injection: Injection
    redact: str | None


class Egress:
    """Decides for the guests of this host."""

    def __init__(
        self,
        guests: Guests,
        resolver: Resolver,
        injector: Injector,
        redactions: Redactions,
        tunnels: Tunnels,
        audit: Audit,
    ) -> None:
        self._guests, self._resolver, self._injector, self._audit = guests, resolver, injector, audit
        self._redactions, self._tunnels = redactions, tunnels
        self.asking = Asking(audit)

    async def decide(self, asked: Asked, headers: Mapping[str, list[str]]) -> Let:
        """Return how a request goes on; raises SpaceError, the guest's answer, where it does not.

        `headers` are the guest's by lower-case name.
        """
        guest = guest_of(self._guests, asked)
        try:
            request = request_of(guest, asked)
        except SpaceError as error:
            self._note(guest, asked, None, error, None)
            raise
        verdict = decide(guest.policy, request)
        question: int | None = None
        wait_s = guest.policy.ask_timeout_s
        try:
            if verdict.ask and wait_s is not None and not self.asking.full(guest.sandbox):
                question = self.asking.open(guest, request, wait_s)
                verdict = await self._second_opinion(guest, request, verdict, question, wait_s)
            if not verdict.allowed:
                raise EgressDenied(f"{request.method} {_shown(request)} is not allowed: {verdict.why}.")
            return await self._let(guest, asked, request, verdict, headers, question)
        except SpaceError as error:
            self._note(guest, asked, request, error, verdict, of=question)
            raise

    async def _second_opinion(
        self, guest: Guest, request: Request, verdict: Verdict, question: int, wait_s: float
    ) -> Verdict:
        """Return the verdict that a person made of one; the policy of then still counts."""
        if not await self.asking.answer_to(guest, question, wait_s):
            return verdict
        now = decide(guest.policy, request)
        return dataclasses.replace(now, allowed=True, why="a person allowed it") if now.ask else now

    async def _let(
        self,
        guest: Guest,
        asked: Asked,
        request: Request,
        verdict: Verdict,
        headers: Mapping[str, list[str]],
        question: int | None,
    ) -> Let:
        _check_room(guest)
        guest.budgets.admit(guest.policy, verdict.rule)
        verdict, address, injection = await self._prepared(guest, asked, request, verdict, headers)
        # from here to the flight's beginning nothing else runs
        if self._guests.at(asked.source) is not guest:
            raise EgressDenied("The sandbox ended while its request was judged.")
        _check_room(guest)
        via = guest.policy.upstream_proxy
        if (refusal := proxy_refusal(guest.policy)) is not None:
            raise EgressDenied(f"{request.method} {_shown(request)} is not allowed: {refusal}.")
        seq = self._note(guest, asked, request, None, verdict, address, of=question)
        flight = Flight(seq, asked.source_port, request, address, verdict.rule, time.monotonic(), via=via)
        guest.flights.begin(flight, alone=asked.alone)
        return Let(
            dial=f"{address}:{request.port}" if via is None else self._tunnels.way(guest, via, flight),
            seq=seq,
            authority=authority_of(request),
            upgrade=request.upgrade is not None,
            injection=injection,
            redact=self._redactions.ident(guest, request.host, injection.tokens),
        )

    async def _prepared(
        self, guest: Guest, asked: Asked, request: Request, verdict: Verdict, headers: Mapping[str, list[str]]
    ) -> tuple[Verdict, IPv4Address, Injection]:
        """Return where an allowed request goes and what goes with it, by the policy and secrets of this moment.

        Looking up a name or getting a token takes time. What was set meanwhile counts, so it is done over then.
        """
        for _ in range(_ATTEMPTS):
            policy, told = guest.policy, guest.told
            address = await self._pick(policy, verdict, request, asked.source_port)
            bindings = _bindings(policy, verdict)
            injection = await self._injector.injection(bindings, guest.secrets, told, request, headers)
            if guest.policy is policy and guest.told is told:  # what a provider rotates meanwhile came of the same
                return verdict, address, injection
            verdict = _again(guest.policy, request, verdict)
        raise Unavailable("The policy of this sandbox changes too fast. Try again.")

    async def _pick(self, policy: Policy, verdict: Verdict, request: Request, spread: int) -> IPv4Address:
        return await self._resolver.pick(
            request.host,
            lambda address: may_dial(policy, verdict, address, request.protocol, request.port),
            declared_network(policy, verdict),
            spread,
            policy.dns_servers,
        )

    def _note(
        self,
        guest: Guest,
        asked: Asked,
        request: Request | None,
        error: SpaceError | None,
        verdict: Verdict | None,
        address: IPv4Address | None = None,
        of: int | None = None,
    ) -> int:
        return self._audit.note(
            "verdict",
            guest.sandbox,
            of=of,
            generation=guest.generation,
            protocol={"tls": "https", "plain": "http"}.get(asked.chain, ""),
            name=request.host if request else guest.names.name_of(asked.destination) or "",
            port=asked.destination_port,
            address=None if address is None else str(address),
            via=None if address is None or guest.policy.upstream_proxy is None else str(guest.policy.upstream_proxy),
            method=asked.method[:16],
            path=asked.path.partition("?")[0][:MAX_PATH],
            allowed=error is None,
            observed=True if error is None and verdict is not None and verdict.observed else None,
            rule=verdict.rule if verdict else None,
            why=str(error) if error else verdict.why if verdict else "",
        )


def _check_room(guest: Guest) -> None:
    if len(guest.flights) >= MAX_IN_FLIGHT:
        raise TooManyRequests(f"This sandbox has {MAX_IN_FLIGHT} requests under way.")


def _bindings(policy: Policy, verdict: Verdict) -> tuple[Binding, ...]:
    """Return the credentials that go with an allowed request: those of the rule that decided."""
    return () if verdict.rule is None else policy.rules[verdict.rule].bindings


def _again(policy: Policy, request: Request, verdict: Verdict) -> Verdict:
    """Judge by a policy that came while the request was on its way here; raises EgressDenied."""
    now = decide(policy, request)
    if now.allowed:
        return now
    if now.ask and verdict.rule is None:
        return dataclasses.replace(now, allowed=True, why=verdict.why)
    raise EgressDenied(f"{request.method} {_shown(request)} is not allowed: {now.why}.")


def _shown(request: Request) -> str:
    """Return the request's target for a message, without its query."""
    return f"{request.protocol}://{authority_of(request)}{request.path.partition('?')[0][:MAX_PATH]}"
