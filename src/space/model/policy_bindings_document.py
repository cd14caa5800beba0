"""The `headers` and `secrets` of a rule as JSON.

    "headers": {"authorization": "Bearer ${secrets.TOKEN}"}
    "secrets": [{"kind": "header", "header": "x-api-key", "value": "${secrets.KEY}"},
                {"kind": "basic", "username": "x-access-token", "password": "${secrets.GIT}"},
                {"kind": "query", "parameter": "key", "value": "${secrets.KEY}"},
                {"kind": "sigv4", "access_key_id": "${secrets.ID}", "secret_access_key": "${secrets.SECRET}",
                 "service": "s3", "region": "eu-central-1"},
                {"kind": "oauth", "token_url": "https://id.example.com/token", "client_id": "app",
                 "client_secret": "${secrets.CLIENT}", "refresh_token": "${secrets.REFRESH}", "scope": "read"}]

`headers` is the short form of the first kind; there a value may also be without a secret, which every request gets.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

from space.model.errors import InvalidPolicy
from space.model.policy_bindings import (
    BasicBinding,
    Binding,
    HeaderBinding,
    OAuthBinding,
    QueryBinding,
    SigV4Binding,
    Template,
    template,
)
from space.model.policy_names import canonical_host
from space.model.policy_reading import choice, field, known, mapping, sequence, text

_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^`|~-]{1,64}")
_PARAMETER = re.compile(r"[A-Za-z0-9_.~-]{1,64}")
_AWS_WORD = re.compile(r"[a-z0-9-]{1,64}")
# Of the connection or of the request's frame, or what other rules go by: never a place for a credential.
_NOT_HEADERS = frozenset(
    {
        *("host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        *("content-length", "content-type", "content-encoding", "accept-encoding", "range", "if-range"),
        *("proxy-authorization", "proxy-connection"),
    }
)
_NOT_PREFIXES = ("x-space-", "x-envoy-", "x-forwarded-", ":")


def parse(rule: Mapping[str, object], where: str) -> tuple[Binding, ...]:
    """Read both keys of a rule; raises InvalidPolicy."""
    found = [*_headers(rule, where), *_secrets(rule, where)]
    slots = [binding.slot for binding in found]
    for slot in slots:
        if slots.count(slot) > 1:
            raise InvalidPolicy(f"{where}: two credentials for the same place, {slot}.")
    return tuple(found)


def _headers(rule: Mapping[str, object], where: str) -> Iterator[Binding]:
    place = f"{where}.headers"
    for name, value in mapping(rule.get("headers", {}), place).items():
        yield HeaderBinding(_header(name, place), _template({name: value}, name, place))


def _secrets(rule: Mapping[str, object], where: str) -> Iterator[Binding]:
    for index, entry in enumerate(sequence(rule.get("secrets", []), f"{where}.secrets")):
        place = f"{where}.secrets[{index}]"
        document = mapping(entry, place)
        kind = choice(document.get("kind"), tuple(_KINDS), f"{place}.kind")
        keys, read = _KINDS[kind]
        known(document, ("kind", *keys), place)
        yield _checked(read(document, place), place)


def _checked(binding: Binding, place: str) -> Binding:
    if not binding.secrets:
        raise InvalidPolicy(f"{place}: has no ${{secrets.NAME}}; what is no secret the workload can send itself.")
    return binding


def _template(document: Mapping[str, object], key: str, place: str) -> Template:
    found = _optional(document, key, place)
    if found is None:
        raise InvalidPolicy(f"{place}: needs {key!r}.")
    return found


def _optional(document: Mapping[str, object], key: str, place: str) -> Template | None:
    return field(document, key, place, lambda value: template(text(value)))


def _word(document: Mapping[str, object], key: str, place: str, form: re.Pattern[str]) -> str:
    found = field(document, key, place, text)
    if found is None or form.fullmatch(found) is None:
        raise InvalidPolicy(f"{place}: needs {key!r} of the form {form.pattern}.")
    return found


def _header(name: str, place: str) -> str:
    lower = name.lower()
    if _HEADER.fullmatch(lower) is None or lower in _NOT_HEADERS or lower.startswith(_NOT_PREFIXES):
        raise InvalidPolicy(f"{place}: {ascii(name)[:60]} is no header that a credential can be put into.")
    return lower


def _read_header(document: Mapping[str, object], place: str) -> Binding:
    name = field(document, "header", place, text) or ""
    return HeaderBinding(_header(name, place), _template(document, "value", place))


def _read_basic(document: Mapping[str, object], place: str) -> Binding:
    username = _template(document, "username", place)
    if ":" in username.text:
        raise InvalidPolicy(f"{place}: a username has no ':' (RFC 7617).")
    return BasicBinding(username, _template(document, "password", place))


def _read_query(document: Mapping[str, object], place: str) -> Binding:
    return QueryBinding(_word(document, "parameter", place, _PARAMETER), _template(document, "value", place))


def _read_sigv4(document: Mapping[str, object], place: str) -> Binding:
    return SigV4Binding(
        access_key_id=_template(document, "access_key_id", place),
        secret_access_key=_template(document, "secret_access_key", place),
        session_token=_optional(document, "session_token", place),
        service=_word(document, "service", place, _AWS_WORD),
        region=_word(document, "region", place, _AWS_WORD),
    )


def _read_oauth(document: Mapping[str, object], place: str) -> Binding:
    client_secret = _optional(document, "client_secret", place)
    refresh_token = _optional(document, "refresh_token", place)
    if refresh_token is not None and refresh_token.text != f"${{secrets.{''.join(refresh_token.secrets)}}}":
        raise InvalidPolicy(f"{place}.refresh_token: is one secret alone, since the endpoint may give its next value.")
    if client_secret is None and refresh_token is None:
        raise InvalidPolicy(f"{place}: needs a client_secret, a refresh_token, or both.")
    return OAuthBinding(
        token_url=field(document, "token_url", place, _token_url) or _missing(place, "token_url"),
        client_id=_template(document, "client_id", place),
        client_secret=client_secret,
        refresh_token=refresh_token,
        scope=field(document, "scope", place, text) or "",
    )


def _missing(place: str, key: str) -> str:
    raise InvalidPolicy(f"{place}: needs {key!r}.")


def _token_url(value: object) -> str:
    url = text(value)
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.username is not None or parts.fragment or not parts.hostname:
        raise InvalidPolicy(f"{ascii(url)[:80]} is no https URL of a token endpoint.")
    canonical_host(parts.hostname)
    return url


_KINDS: Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, object], str], Binding]]] = {
    "header": (("header", "value"), _read_header),
    "basic": (("username", "password"), _read_basic),
    "query": (("parameter", "value"), _read_query),
    "sigv4": (("access_key_id", "secret_access_key", "session_token", "service", "region"), _read_sigv4),
    "oauth": (("token_url", "client_id", "client_secret", "refresh_token", "scope"), _read_oauth),
}


def to_document(binding: Binding) -> dict[str, object]:
    """Write a binding as an entry of `secrets`."""
    kind = {HeaderBinding: "header", BasicBinding: "basic", QueryBinding: "query", SigV4Binding: "sigv4"}
    document: dict[str, object] = {"kind": kind.get(type(binding), "oauth")}
    for name in binding.__dataclass_fields__:
        value: object = getattr(binding, name)
        if value not in (None, ""):
            document[name] = value.text if isinstance(value, Template) else value
    return document
