"""Paths of requests, and patterns of them.

A pattern is compared with what an upstream most likely makes of the path, so a path is decoded first; and one that two
servers could read in two ways (an encoded slash, `..`, `;`, a doubled slash) is ambiguous: it satisfies no pattern of
an allow rule and every one of a deny rule.

In a pattern `*` stands for any characters of one segment, and `**`, alone in its segment, for one or more segments:
`/public/**` means all below `/public/`, not `/public` itself. Matching is by segments and never tries the same thing
twice, so that no path, however long, makes it slow.
"""

import dataclasses
import functools
import re
import urllib.parse
from collections.abc import Callable, Sequence

from space.model.errors import InvalidArgument, SpaceError

MAX_PATH = 16 * 1024
"""Characters of a path that is compared with patterns; a longer one is ambiguous."""

MAX_PATTERN = 256

_VISIBLE = re.compile(r"/[\x21-\x7e]*")
_ESCAPES = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Read as a separator, an escape or an end by some servers and as plain text by others.
_TWO_READINGS = re.compile(r"%(?:2f|5c|25|00|3b|23)|[\\;#]|//", re.IGNORECASE)
_DOTS = frozenset({".", ".."})
ANY = "**"


class AmbiguousPath(SpaceError):
    """A path that servers read in different ways."""

    code, status, title = "ambiguous_path", 422, "Ambiguous path"


@functools.lru_cache(maxsize=256)
def canonical_path(target: str) -> str:
    """Return the decoded path of a request target, without its query; raises AmbiguousPath."""
    raw = target.partition("?")[0]
    if len(raw) > MAX_PATH or _VISIBLE.fullmatch(raw) is None or _ESCAPES.search(raw) or _TWO_READINGS.search(raw):
        raise AmbiguousPath("The path can be read in two ways.")
    try:
        path = urllib.parse.unquote(raw, errors="strict")
    except UnicodeDecodeError as error:
        raise AmbiguousPath("The path is not UTF-8.") from error
    if not path.isprintable() or not _DOTS.isdisjoint(path.split("/")):
        raise AmbiguousPath("The path has dot segments or control characters.")
    return path


@dataclasses.dataclass(frozen=True, slots=True)
class PathPattern:
    """A pattern as it was written, and its decoded segments; `**` is the segment ANY."""

    text: str = dataclasses.field(compare=False)
    segments: tuple[str, ...]

    @property
    def plain(self) -> str:
        """The pattern, decoded."""
        return "/" + "/".join(self.segments)

    def matches(self, path: str) -> bool:
        """Tell whether a canonical path is meant."""
        return _run(self.segments, path.split("/")[1:], _segment_matches)

    def covers(self, other: "PathPattern") -> bool:
        """Tell whether every path that `other` means is meant; False where that is hard to tell."""
        # Read as a path, a `*` of the other can only have been taken by a `*` of ours, and its `**` only by our `**`.
        return _run(self.segments, other.segments, lambda mine, its: its != ANY and _segment_matches(mine, its))

    def overlaps(self, other: "PathPattern") -> bool:
        """Tell whether some path may be meant by both; True also where only their wildcards can tell."""
        if "*" not in self.plain:
            return other.matches(self.plain)
        if "*" not in other.plain:
            return self.matches(other.plain)
        mine, its = self.plain.split("*"), other.plain.split("*")
        heads, tails = (mine[0], its[0]), (mine[-1], its[-1])
        return all(head.startswith(min(heads, key=len)) for head in heads) and all(
            tail.endswith(min(tails, key=len)) for tail in tails
        )


def path_pattern(text: str) -> PathPattern:
    """Read a pattern; raises InvalidArgument where it could never match, or could mean two things."""
    if len(text) > MAX_PATTERN:
        raise InvalidArgument(f"{text[:80]!r}...: a pattern has at most {MAX_PATTERN} characters.")
    if "?" in text:
        raise InvalidArgument(f"{text!r}: a pattern is of the path only; queries are not judged.")
    if "%2a" in text.lower():
        raise InvalidArgument(f"{text!r}: write '*', which stands for any characters, the encoded one too.")
    try:
        path = canonical_path(urllib.parse.quote(text, safe="/%*;\\#!$&'()+,=:@~"))
    except AmbiguousPath as error:
        raise InvalidArgument(
            f"{text!r} is no pattern: it begins with '/', and has no '//', '..', ';', '#', '\\', '%2F' or '%25'."
        ) from error
    segments = tuple(path.split("/")[1:])
    for segment in segments:
        if "**" in segment and segment != ANY:
            raise InvalidArgument(f"{text!r}: '**' stands alone between slashes, as in /public/**.")
    return PathPattern(text, segments)


def _run(pattern: Sequence[str], path: Sequence[str], same: Callable[[str, str], bool]) -> bool:
    """Match segments: the parts between ANYs are found one after the other, each as early as it can be."""
    parts = _split(pattern)
    first, *rest = parts
    if not rest:
        return len(first) == len(path) and all(map(same, first, path))
    last = rest.pop()
    if len(path) < sum(map(len, parts)) + len(parts) - 1 or not all(map(same, first, path)):
        return False
    end = len(path) - len(last)
    if not all(map(same, last, path[end:])):
        return False
    position = len(first) + 1
    for part in rest:
        while position + len(part) < end and not all(map(same, part, path[position:])):
            position += 1
        if position + len(part) >= end:
            return False
        position += len(part) + 1
    return position <= end


def _split(pattern: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for segment in pattern:
        if segment == ANY:
            parts.append([])
        else:
            parts[-1].append(segment)
    return parts


def _segment_matches(pattern: str, text: str) -> bool:
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    last = rest.pop()
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in rest:
        position = text.find(part, position, end)
        if position < 0:
            return False
        position += len(part)
    return True
