"""Access tokens by OAuth 2.0 (RFC 6749): client credentials, or a refresh token that stays on the host.

Tokens are kept in memory until shortly before they expire, one for each binding and values. The token endpoint is
reached like everything else: its name resolved and screened here, its certificate verified.
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
from urllib.parse import quote_plus, urlsplit

import httpx2

from space.gateway.resolve import Resolver
from space.model.errors import SpaceError
from space.model.policy_bindings import OAuthBinding, UnresolvedSecret
from space.model.policy_names import InvalidName, canonical_host

_CALL_S = 5.0
_EARLY_S = 30.0
"""A token is replaced this long before it ends, so that it does not end on its way."""
_DEFAULT_LIFE_S = 300.0
_MAX_ANSWER = 64 * 1024
_MAX_KEPT = 1024


class TokenRefused(SpaceError):
    """The token endpoint gave no token."""

    code, status, title, retryable = "token_refused", 502, "No access token", True


@dataclasses.dataclass(slots=True)
class _Kept:
    token: str = dataclasses.field(default="", repr=False)
    refresh_token: str | None = dataclasses.field(default=None, repr=False)
    until_s: float = 0.0
    renewal: asyncio.Future[None] | None = None


class Tokens:
    """Gets tokens, and remembers them."""

    def __init__(self, resolver: Resolver, trust: ssl.SSLContext) -> None:
        """`trust` verifies the endpoints' certificates."""
        self._resolver, self._trust = resolver, trust
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()

    async def token(self, binding: OAuthBinding, secrets: Mapping[str, str]) -> str:
        """Return a valid access token; raises UnresolvedSecret, TokenRefused, or what resolving the endpoint raises."""
        form = _form(binding, secrets)
        client = binding.client_id.render(secrets)
        password = binding.client_secret.render(secrets) if binding.client_secret else None
        key = hashlib.sha256(json.dumps([binding.token_url, form, client, password]).encode()).digest()
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
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
                rotated = {} if kept.refresh_token is None else {"refresh_token": kept.refresh_token}
                return await self._renew(kept, binding.token_url, form | rotated, client, password)
            finally:
                kept.renewal.set_result(None)
                kept.renewal = None
        return kept.token

    async def _renew(self, kept: _Kept, url: str, form: dict[str, str], client: str, password: str | None) -> str:
        answer = await self._post(url, form, client, password)
        token, life_s = answer.get("access_token"), answer.get("expires_in", _DEFAULT_LIFE_S)
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
            raise TokenRefused("The token endpoint answered without an access token.")
        kept.token = token
        # a lifetime that cannot be read counts as none: the next request gets a token of its own
        life = float(life_s) if isinstance(life_s, (int, float)) else 0.0
        kept.until_s = time.monotonic() + max(0.0, life - _EARLY_S)
        refreshed = answer.get("refresh_token")
        if "refresh_token" in form and isinstance(refreshed, str):
            kept.refresh_token = refreshed  # a server that rotates it takes the former one no more
        return token

    async def _post(self, url: str, form: dict[str, str], client: str, password: str | None) -> dict[str, object]:
        parts = urlsplit(url)
        try:
            host = canonical_host(parts.hostname or "")
        except InvalidName as error:
            raise UnresolvedSecret("The token endpoint is not a name.") from error
        port = parts.port or 443
        address = await self._resolver.pick(host, _any_address, None, 0)
        authority = host if port == 443 else f"{host}:{port}"
        target = f"https://{address}:{port}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")
        if password is None:
            form = form | {"client_id": client}
        auth = None if password is None else httpx2.BasicAuth(quote_plus(client), quote_plus(password))
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


def _form(binding: OAuthBinding, secrets: Mapping[str, str]) -> dict[str, str]:
    form = {"grant_type": "client_credentials"}
    if binding.refresh_token is not None:
        form = {"grant_type": "refresh_token", "refresh_token": binding.refresh_token.render(secrets)}
    if binding.scope:
        form["scope"] = binding.scope
    return form
