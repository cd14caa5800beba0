"""Host names and patterns of them, in the one spelling in which they are compared.

A name is canonical when it is lower case, without a trailing dot, of letters, digits and hyphens only, with every
international label in its `xn--` form. What cannot be brought into that form is refused, never repaired: two programs
that repair differently see two names. Policies may be written in Unicode; what comes from a guest may not.
"""

import dataclasses
import functools
import re

import idna

from space.model.errors import SpaceError

MAX_NAME = 253
"""Characters of a name (RFC 1035, without the trailing dot)."""

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_LAST = r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
# A last label that is a number makes the whole an IPv4 address to some parsers: 127.1, 0x7f.1, 1.0x7f.
_NAME = re.compile(rf"(?:{_LABEL}\.)+{_LAST}")
_SUFFIX = re.compile(rf"(?:{_LABEL}\.)*{_LAST}")


class InvalidName(SpaceError):
    """A text that is no host name, or one that could be read in two ways."""

    code, status, title = "invalid_name", 422, "Invalid host name"


@functools.lru_cache(maxsize=4096)
def canonical_host(text: str) -> str:
    """Return a host name as it is compared; raises InvalidName for anything but a name of at least two labels.

    Takes ASCII in any case, with or without one trailing dot: what DNS questions, SNI and `Host` may hold.
    """
    return _canonical(text, _NAME)


def _canonical(text: str, form: re.Pattern[str]) -> str:
    name = text.removesuffix(".")
    if not name.isascii() or len(name) > MAX_NAME:
        raise InvalidName(f"{_shown(text)} is no host name: ASCII of at most {MAX_NAME} characters.")
    name = name.lower()
    if form.fullmatch(name) is None:
        raise InvalidName(
            f"{_shown(text)} is no host name: labels of letters, digits and inner hyphens, joined by single dots, "
            "the last one beginning with a letter."
        )
    if "xn--" in name:
        _check_international(name, text)
    return name


def _check_international(name: str, text: str) -> None:
    """Refuse an `xn--` label that no Unicode label stands behind, or that is not the one spelling of it (RFC 5891)."""
    for label in name.split("."):
        if label.startswith("xn--"):
            try:
                same = idna.alabel(idna.ulabel(label)).decode() == label
            except idna.IDNAError:
                same = False
            if not same:
                raise InvalidName(f"{_shown(text)} is no host name: {label} is not valid IDNA.")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:80] + "...")


@dataclasses.dataclass(frozen=True, slots=True)
class HostPattern:
    """One name; or with `wildcard` every name below `suffix`, not itself, and with an empty suffix every name."""

    suffix: str
    wildcard: bool = False

    def __str__(self) -> str:
        if not self.wildcard:
            return self.suffix
        return f"*.{self.suffix}" if self.suffix else "*"

    def matches(self, name: str) -> bool:
        """Tell whether a canonical name is meant."""
        if not self.wildcard:
            return name == self.suffix
        return not self.suffix or name.endswith("." + self.suffix)

    def covers(self, other: "HostPattern") -> bool:
        """Tell whether every name that `other` means is meant."""
        if not other.wildcard:
            return self.matches(other.suffix)
        return self.wildcard and (self.suffix == other.suffix or not self.suffix or self.matches(other.suffix))

    def overlaps(self, other: "HostPattern") -> bool:
        """Tell whether some name is meant by both."""
        return self.covers(other) or other.covers(self)


def host_pattern(text: str) -> HostPattern:
    """Read `name`, `*.suffix` or `*`, in Unicode too; raises InvalidName."""
    if text == "*":
        return HostPattern("", wildcard=True)
    wildcard = text.startswith("*.")
    plain = text[2:] if wildcard else text
    if "*" in plain:
        raise InvalidName(f"{_shown(text)}: '*' may only stand for whole labels at the beginning, as in *.example.com.")
    if not plain.isascii():
        plain = _from_unicode(plain)
    return HostPattern(_canonical(plain, _SUFFIX if wildcard else _NAME), wildcard)


def _from_unicode(text: str) -> str:
    """Return the ASCII form by IDNA 2008, which maps nothing: full-width letters and the like are refused."""
    labels = text.lower().removesuffix(".").split(".")
    try:
        return ".".join(label if label.isascii() else idna.alabel(label).decode() for label in labels)
    except idna.IDNAError as error:
        raise InvalidName(f"{_shown(text)} is no host name: {error}.") from error
