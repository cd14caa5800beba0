"""Credentials that the gateway adds to requests: which secrets go where. The values never come near this module's data.

A template is text with `${secrets.NAME}` in it. Only the gateway fills it, with the values of the day, into the place
that the policy's author chose; what the guest sent in that place is replaced.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from space.model.errors import InvalidArgument, SpaceError

NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_.-]{0,63}"
_NAME = re.compile(NAME_PATTERN)
_PLACEHOLDER = re.compile(rf"\$\{{secrets\.({NAME_PATTERN})\}}")
PLACEHOLDER_MARK = "${secrets."
"""What a guest may write in a header that a binding replaces; anywhere else it means that a binding is missing."""


class UnresolvedSecret(SpaceError):
    """A binding names a secret that the project does not have, or whose value does not fit the place."""

    code, status, title = "unresolved_secret", 502, "Secret not available"


@dataclasses.dataclass(frozen=True, slots=True)
class Template:
    """Text with placeholders."""

    text: str

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the secrets in it, in order."""
        return tuple(_PLACEHOLDER.findall(self.text))

    def render(self, values: Mapping[str, str]) -> str:
        """Fill it; raises UnresolvedSecret, which names the secret and never shows a value."""
        missing = [name for name in self.secrets if name not in values]
        if missing:
            raise UnresolvedSecret(f"There is no secret {missing[0]}; add it with `space secret set {missing[0]}`.")
        return _PLACEHOLDER.sub(lambda found: values[found[1]], self.text)


@dataclasses.dataclass(frozen=True, slots=True)
class HeaderBinding:
    """Set a header, whose name is lower case."""

    header: str
    value: Template

    @property
    def slot(self) -> str:
        """What it writes; two bindings for one request must not write the same."""
        return f"header {self.header}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the secrets it needs."""
        return self.value.secrets


@dataclasses.dataclass(frozen=True, slots=True)
class BasicBinding:
    """Set `authorization: Basic ...`; git over https takes a token as the password."""

    username: Template
    password: Template

    @property
    def slot(self) -> str:
        """What it writes."""
        return "header authorization"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the secrets it needs."""
        return self.username.secrets + self.password.secrets


@dataclasses.dataclass(frozen=True, slots=True)
class QueryBinding:
    """Set a parameter of the query."""

    parameter: str
    value: Template

    @property
    def slot(self) -> str:
        """What it writes."""
        return f"query {self.parameter}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the secrets it needs."""
        return self.value.secrets


@dataclasses.dataclass(frozen=True, slots=True)
class SigV4Binding:
    """Sign the request anew by AWS Signature Version 4, for one service in one region."""

    access_key_id: Template
    secret_access_key: Template
    session_token: Template | None
    service: str
    region: str

    @property
    def slot(self) -> str:
        """What it writes."""
        return "header authorization"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the secrets it needs."""
        token = self.session_token.secrets if self.session_token else ()
        return self.access_key_id.secrets + self.secret_access_key.secrets + token


@dataclasses.dataclass(frozen=True, slots=True)
class OAuthBinding:
    """Set `authorization: Bearer ...` with a token that the gateway gets from `token_url` (RFC 6749 §4.4, §6).

    With a `refresh_token`, which is one placeholder and nothing else, by that grant, else by client credentials. The
    gateway keeps both kinds of token; a refresh token that the endpoint replaces becomes the secret's next value.
    """

    token_url: str
    client_id: Template
    client_secret: Template | None
    refresh_token: Template | None
    scope: str

    @property
    def slot(self) -> str:
        """What it writes."""
        return "header authorization"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the secrets it needs."""
        parts = (self.client_id, self.client_secret, self.refresh_token)
        return tuple(name for part in parts if part is not None for name in part.secrets)


Binding = HeaderBinding | BasicBinding | QueryBinding | SigV4Binding | OAuthBinding
BindingKind = Literal["header", "basic", "query", "sigv4", "oauth"]


def template(text: str) -> Template:
    """Read a template; raises InvalidArgument where a placeholder is malformed or a character cannot be carried."""
    if not text.isascii() or not text.isprintable():
        raise InvalidArgument("A template is printable ASCII.")
    if "${" in _PLACEHOLDER.sub("", text):
        raise InvalidArgument("A placeholder is written ${secrets.NAME}.")
    return Template(text)


def is_secret_name(text: str) -> bool:
    """Tell whether a text may name a secret: a letter or '_', then letters, digits, '_', '-' and '.', at most 64."""
    return _NAME.fullmatch(text) is not None
