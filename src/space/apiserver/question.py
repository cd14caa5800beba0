"""A request of a client as the edge asks about it."""

import dataclasses
import re
from collections.abc import Iterable, Mapping

from space.wire import edge

_KEY = re.compile(rb"e2b_[0-9a-f]{40}")
_TOKEN = re.compile(rb"[0-9a-f]{64}")

Headers = Iterable[tuple[bytes, bytes]]


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """`path` is raw, without the prefix and the query. Of a header that was sent twice `headers` has one value."""

    method: str
    path: bytes
    query: bytes
    headers: Mapping[bytes, bytes]
    every_header: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(cls, method: str, raw_path: bytes, query: bytes, headers: Headers) -> "Question":
        """Read it from the edge's request."""
        every = tuple(headers)
        return cls(method, raw_path.removeprefix(edge.PREFIX.encode()), query, dict(every), every)

    def text(self, name: str) -> str:
        """Return a header's value, "" where it is missing."""
        return self.headers.get(name.encode(), b"").decode("latin-1").strip()

    @property
    def operation(self) -> str:
        """The method that is meant: a browser asks whether it may (OPTIONS) before it does."""
        return self.text("access-control-request-method") if self.method == "OPTIONS" else self.method

    @property
    def client(self) -> str:
        """The address that the edge saw."""
        return self.text("x-forwarded-for").rpartition(",")[2].strip()

    def secrets(self) -> list[str]:
        """Return the headers in which a key of SPACE's API, or a sandbox's token, is: no server of a guest gets them.

        Anything else in them is for that server: a user's program may ask for an `X-API-Key` of its own.
        """
        places = {b"x-api-key": _KEY, b"authorization": _KEY, edge.ACCESS_TOKEN.encode(): _TOKEN}
        found = {name for name, value in self.every_header if name in places and places[name].search(value)}
        return sorted(name.decode() for name in found)
