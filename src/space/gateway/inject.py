"""Credentials of the policy's bindings, put into a request that may leave by TLS to a verified name.

What the guest sent in the place of a credential is removed, in every spelling that an upstream might read as the same
header (`X_Api_Key`, EGRESS M1). A placeholder of the guest's, `${secrets.NAME}`, is never filled: only the policy's
author says where a secret goes. What cannot be filled is a refusal; a request never goes out without its credential.
"""

import base64
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, unquote_plus

from space.gateway import sigv4
from space.gateway.oauth import Tokens
from space.model.errors import SpaceError
from space.model.policy import Request
from space.model.policy_bindings import (
    PLACEHOLDER_MARK,
    BasicBinding,
    Binding,
    HeaderBinding,
    OAuthBinding,
    QueryBinding,
    SigV4Binding,
    Template,
    UnresolvedSecret,
)
from space.wire.gateway import SecretValue

_VALUE = re.compile(r"[\x20-\x7e]+")
"""What a header may hold; a line break in a secret would end the header."""


class CredentialRefused(SpaceError):
    """The request cannot be given its credential."""

    code, status, title = "credential_refused", 403, "Credential refused"


@dataclasses.dataclass(frozen=True, slots=True)
class Injection:
    """Changes of a request: headers to set and to remove, and its new target where the query changes.

    `tokens` are credentials among them that are nobody's secret by name.
    """

    headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    remove: Sequence[str] = ()
    path: str | None = dataclasses.field(default=None, repr=False)
    tokens: Sequence[str] = dataclasses.field(default=(), repr=False)


class Injector:
    """Fills bindings."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def injection(
        self,
        bindings: Sequence[Binding],
        secrets: Mapping[str, str],
        told: Mapping[str, SecretValue],
        request: Request,
        headers: Mapping[str, list[str]],
    ) -> Injection:
        """Return what to change; raises UnresolvedSecret, CredentialRefused.

        `secrets` are the values by name, and `told` says which secrets these are. `headers` are the guest's by
        lower-case name.
        """
        if not bindings:
            _check_placeholders(headers, ())
            return Injection()
        if request.protocol != "https" and any(binding.secrets for binding in bindings):
            raise CredentialRefused("A credential only goes over https.")
        made: dict[str, str] = {}
        tokens: list[str] = []
        path = request.path
        for binding in bindings:
            match binding:
                case HeaderBinding():
                    made[binding.header] = _filled(binding.value, secrets)
                case BasicBinding():
                    pair = f"{_filled(binding.username, secrets)}:{_filled(binding.password, secrets)}"
                    made["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
                case QueryBinding():
                    path = _with_parameter(path, binding.parameter, _filled(binding.value, secrets))
                case OAuthBinding():
                    tokens.append(await self._tokens.token(binding, secrets, told))
                    made["authorization"] = f"Bearer {tokens[-1]}"
                case SigV4Binding():
                    made |= sigv4.sign(binding, secrets, request, headers)
        _check_placeholders(headers, made)
        remove = [name for name in headers if _folded(name) in {_folded(one) for one in made} and name not in made]
        return Injection(made, remove, path if path != request.path else None, tokens)


def _filled(template: Template, secrets: Mapping[str, str]) -> str:
    value = template.render(secrets)
    if not _VALUE.fullmatch(value):
        names = ", ".join(template.secrets)
        raise UnresolvedSecret(f"The value of {names} has characters that a header cannot carry.")
    return value


def _folded(name: str) -> str:
    """Return a header's name as the most lenient upstream compares it."""
    return name.lower().replace("_", "-")


def _check_placeholders(headers: Mapping[str, list[str]], made: Iterable[str]) -> None:
    """Refuse a placeholder where no binding puts a credential: the request would go out with the bare text."""
    replaced = {_folded(name) for name in made}
    for name, values in headers.items():
        if any(PLACEHOLDER_MARK in value for value in values) and _folded(name) not in replaced:
            raise CredentialRefused(
                f"The header {name} has a placeholder for a secret, but the policy binds none to it for this request."
            )


def _with_parameter(target: str, parameter: str, value: str) -> str:
    """Return a target whose query has this parameter once, with this value."""
    path, _, query = target.partition("?")
    kept = [part for part in query.split("&") if part and unquote_plus(part.partition("=")[0]) != parameter]
    kept.append(f"{parameter}={quote(value, safe='')}")
    return f"{path}?{'&'.join(kept)}"
