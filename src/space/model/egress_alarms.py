"""Patterns in a sandbox's traffic that are worth a look: what carrying data off looks like, and what probing does.

Counted in windows of WINDOW_S per sandbox, each kind at most once a window. An alarm changes nothing: what may leave is
the policy's to say.
"""

import collections
import dataclasses
import enum
import math
import re

from space.model.ids import SandboxId

WINDOW_S = 300.0
DENIED = 100
"""Refused requests, connections and lookups."""

NAMES = 100
"""Different names that were asked for."""

UPLOAD_BYTES = 256 * 1024 * 1024
ODD_NAMES = 10
"""Different names with a part that looks like data."""

ODD_LENGTH, ODD_BITS = 20, 3.6
"""A part of so many characters, whose characters hold so many bits each: hex is near 3.7 and base32 near 4.2."""

_MOST = 10_000
"""Sandboxes that are watched at once; the ones whose window began first are forgotten, and begin anew."""


class Kind(enum.StrEnum):
    """What there is too much of."""

    DENIED = "denied_burst"
    NAMES = "many_names"
    UPLOAD = "large_upload"
    ODD_NAMES = "odd_names"


@dataclasses.dataclass(frozen=True, slots=True)
class Alarm:
    """What was found, in words."""

    kind: Kind
    why: str


@dataclasses.dataclass(slots=True)
class _Window:
    began_s: float
    denied: int = 0
    uploaded: int = 0
    names: set[str] = dataclasses.field(default_factory=set)
    odd: set[str] = dataclasses.field(default_factory=set)
    told: set[Kind] = dataclasses.field(default_factory=set)


class Alarms:
    """Watches many sandboxes. Times are in seconds on any one clock."""

    def __init__(self) -> None:
        self._windows: collections.OrderedDict[SandboxId, _Window] = collections.OrderedDict()

    def see(
        self, sandbox: SandboxId, at_s: float, *, denied: bool = False, name: str = "", uploaded_bytes: int = 0
    ) -> list[Alarm]:
        """Take note of one event and return what it makes too much of."""
        window = self._window(sandbox, at_s)
        window.denied += denied
        window.uploaded += uploaded_bytes
        if name and len(window.names) < NAMES:
            window.names.add(name)
        if name and len(window.odd) < ODD_NAMES and is_odd(name):
            window.odd.add(name)
        found = [alarm for alarm in _too_much(window) if alarm.kind not in window.told]
        window.told.update(alarm.kind for alarm in found)
        return found

    def _window(self, sandbox: SandboxId, at_s: float) -> _Window:
        window = self._windows.get(sandbox)
        if window is None or not 0 <= at_s - window.began_s < WINDOW_S:
            self._windows.pop(sandbox, None)
            window = self._windows[sandbox] = _Window(at_s)
            if len(self._windows) > _MOST:
                self._windows.popitem(last=False)
        return window


def _too_much(window: _Window) -> list[Alarm]:
    minutes = f"in {WINDOW_S / 60:g} minutes"
    found = []
    if window.denied >= DENIED:
        found.append(Alarm(Kind.DENIED, f"{DENIED} refusals {minutes}"))
    if len(window.names) >= NAMES:
        found.append(Alarm(Kind.NAMES, f"{NAMES} different names {minutes}"))
    if window.uploaded >= UPLOAD_BYTES:
        found.append(Alarm(Kind.UPLOAD, f"over {UPLOAD_BYTES // 1024**2} MiB sent {minutes}"))
    if len(window.odd) >= ODD_NAMES:
        found.append(Alarm(Kind.ODD_NAMES, f"{ODD_NAMES} names like data {minutes}, such as {min(window.odd)}"))
    return found


def is_odd(name: str) -> bool:
    """Tell whether a part of a name, between dots and hyphens, looks like data rather than a word."""
    return any(len(word) >= ODD_LENGTH and _bits(word) >= ODD_BITS for word in re.split("[.-]", name))


def _bits(text: str) -> float:
    """Return the Shannon entropy of a text in bits a character."""
    counts = collections.Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
