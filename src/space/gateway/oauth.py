"""Access tokens by OAuth 2.0 (RFC 6749): client credentials, or a refresh token that stays on the host.

Access tokens are kept in memory until shortly before they expire, one for each binding and values. A refresh token that
the endpoint replaces in its answer stays the same secret: what came of it is told to the control plane (guests.py), and
is no reason to ask for another access token. The endpoint is reached like everything else: its name resolved and
screened here, its certificate verified.
"""

import asyncio
import dataclasses
import hashlib
import json
import ssl
import time
from collections import OrderedDict
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Self
from urllib.parse import quote_plus, urlsplit

import httpx2

from space.gateway.guests import Guests
from space.gateway.resolve import Resolver
from space.model.errors import SpaceError
from space.model.policy_bindings import OAuthBinding, UnresolvedSecret
from space.model.policy_names import InvalidName, canonical_host
from space.wire.gateway import SecretValue

_CALL_S = 5.0
_EARLY_S = 30.0
"""A token is replaced this long before it ends, so that it does not end on its way; a short-lived one at half-time."""
_DEFAULT_LIFE_S = 300.0
_GRANT_REFUSED = frozenset({400, 401})
"""RFC 6749 §5.2: `invalid_grant`, and what stands for it elsewhere."""
_MAX_ANSWER = 64 * 1024
_MAX_KEPT = 1024


class TokenRefused(SpaceError):
    """The token endpoint gave no token."""

    code, status, title, retryable = "token_refused", 502, "No access token", True


class GrantRefused(TokenRefused):
    """The token endpoint does not take what it was shown: a refresh token may have been used by somebody else."""

    code = "grant_refused"


@dataclasses.dataclass(slots=True)
class _Kept:
    """`spare` is the refresh token that came with the access token."""

    token: str = dataclasses.field(default="", repr=False)
    spare: str | None = dataclasses.field(default=None, repr=False)
    until_s: float = 0.0
    renewal: asyncio.Future[None] | None = None


class Tokens:
    """Gets tokens, and remembers them."""

    def __init__(self, resolver: Resolver, trust: ssl.SSLContext, guests: Guests) -> None:
        """`trust` verifies the endpoints' certificates."""
        self._resolver, self._trust, self._guests = resolver, trust, guests
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()

    async def token(self, binding: OAuthBinding, secrets: Mapping[str, str], told: Mapping[str, SecretValue]) -> str:
        """Return a valid access token; raises UnresolvedSecret, TokenRefused, or what resolving the endpoint raises.

        `secrets` are the values by name; `told` says which secrets these are.
        """
        ask = _Ask.of(binding, secrets, told)
        kept = self._kept.setdefault(ask.key, _Kept())
        self._kept.move_to_end(ask.key)
        if len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        while kept.until_s <= time.monotonic():
            if kept.renewal is not None:
                await asyncio.wait([kept.renewal])  # one question for all who wait; who asked first raises what it got
                if kept.until_s <= time.monotonic():
                    raise TokenRefused("The token endpoint gave no token to the request before this one.")
                break
            kept.renewal = asyncio.get_running_loop().create_future()
            try:
                return await self._renew(kept, ask)
            finally:
                kept.renewal.set_result(None)
                kept.renewal = None
        return kept.token

    async def _renew(self, kept: _Kept, ask: "_Ask") -> str:
        if ask.refresh is None:
            return _take(kept, await self._post(ask, ask.form))
        tried: list[str] = []
        while True:
            known = self._guests.rotations.newest(ask.refresh.id, ask.refresh.value.get_secret_value())
            # Another gateway may have been given a later one while this one was asked; what that one had stored may be
            # what the endpoint has dropped.
            sent = next((one for one in (known, kept.spare) if one is not None and one not in tried), None)
            if sent is None:
                raise GrantRefused(f"The token endpoint {ask.host} does not take the refresh token any more.")
            tried.append(sent)
            try:
                answer = await self._post(ask, {**ask.form, "refresh_token": sent})
            except GrantRefused:
                continue
            next_one = answer.get("refresh_token")
            if isinstance(next_one, str) and next_one and next_one != known:  # the former is taken no more
                self._guests.rotate(ask.refresh.id, known, next_one)
                kept.spare = next_one
            return _take(kept, answer)

    async def _post(self, ask: "_Ask", form: dict[str, str]) -> dict[str, object]:
        parts, host = urlsplit(ask.url), ask.host
        port = parts.port or 443
        address = await self._resolver.pick(host, _any_address, None, 0)
        authority = host if port == 443 else f"{host}:{port}"
        target = f"https://{address}:{port}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")
        if ask.password is None:
            form = form | {"client_id": ask.client}
        auth = None if ask.password is None else httpx2.BasicAuth(quote_plus(ask.client), quote_plus(ask.password))
        try:
            async with (
                asyncio.timeout(_CALL_S),
                httpx2.AsyncClient(verify=self._trust, trust_env=False, timeout=_CALL_S) as http,
                http.stream(
                    "POST", target, data=form, auth=auth,
                    headers={"host": authority, "accept": "application/json"}, extensions={"sni_hostname": host},
                ) as response,
            ):  # fmt: skip
                body = b""
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > _MAX_ANSWER:
                        raise TokenRefused(f"The answer of {host} is too long.")
        except (httpx2.HTTPError, TimeoutError, OSError) as error:
            raise TokenRefused(f"The token endpoint {host} cannot be reached.") from error
        if response.status_code in _GRANT_REFUSED:
            raise GrantRefused(f"The token endpoint {host} answered {response.status_code}.")
        if response.status_code != 200:
            raise TokenRefused(f"The token endpoint {host} answered {response.status_code}.")
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise TokenRefused(f"The token endpoint {host} did not answer with JSON.") from error
        if not isinstance(answer, dict):
            raise TokenRefused(f"The token endpoint {host} did not answer with an object.")
        return answer


def _any_address(_address: IPv4Address) -> bool:
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class _Ask:
    """A question for an access token. `form` is without the refresh token, which may change between two of them."""

    url: str
    host: str
    form: dict[str, str]
    client: str
    password: str | None = dataclasses.field(repr=False)
    refresh: SecretValue | None

    @classmethod
    def of(cls, binding: OAuthBinding, secrets: Mapping[str, str], told: Mapping[str, SecretValue]) -> Self:
        """Fill a binding; raises UnresolvedSecret."""
        try:
            host = canonical_host(urlsplit(binding.token_url).hostname or "")
        except InvalidName as error:
            raise UnresolvedSecret("The token endpoint is not a name.") from error
        form, refresh = {"grant_type": "client_credentials"}, None
        if binding.refresh_token is not None:
            binding.refresh_token.render(secrets)  # raises where it is missing
            form, refresh = {"grant_type": "refresh_token"}, told[binding.refresh_token.secrets[0]]
        if binding.scope:
            form["scope"] = binding.scope
        password = binding.client_secret.render(secrets) if binding.client_secret else None
        return cls(binding.token_url, host, form, binding.client_id.render(secrets), password, refresh)

    @property
    def key(self) -> bytes:
        """Whose access token it is. A refresh token counts as what somebody set, whatever came of it since."""
        lineage = None if self.refresh is None else [self.refresh.id, self.refresh.given_version]
        return hashlib.sha256(json.dumps([self.url, self.form, self.client, self.password, lineage]).encode()).digest()


def _take(kept: _Kept, answer: Mapping[str, object]) -> str:
    token, life_s = answer.get("access_token"), answer.get("expires_in", _DEFAULT_LIFE_S)
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
        raise TokenRefused("The token endpoint answered without an access token.")
    kept.token = token
    # a lifetime that cannot be read counts as none: the next request gets a token of its own
    life = max(0.0, float(life_s)) if isinstance(life_s, (int, float)) else 0.0
    kept.until_s = time.monotonic() + life - min(_EARLY_S, life / 2)
    return token
