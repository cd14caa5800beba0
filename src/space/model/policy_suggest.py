"""Proposes a policy from what a workload did while it was observed: what it needed, and little more.

Every request that it is made from is allowed by it. It is a proposal: who reads it knows which of them were right.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence

from space.model.errors import InvalidArgument
from space.model.policy import DEFAULT_PORTS, Protocol
from space.model.policy_paths import AmbiguousPath, canonical_path, path_pattern

FEW = 8
"""So many paths of a host are listed one by one; more are put together by their first segment."""

MOST = 24
"""More patterns than that say nothing: any path then."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A request that was let through, as it was recorded: the path may have been cut off (`cut`)."""

    protocol: Protocol
    host: str
    port: int
    method: str = "GET"
    path: str = "/"
    websocket: bool = False
    cut: bool = False


def suggest(seen: Iterable[Seen]) -> dict[str, object]:
    """Return a policy as a document: a rule for each host, protocol and port."""
    grouped: dict[tuple[str, Protocol, int], list[Seen]] = defaultdict(list)
    for one in seen:
        grouped[one.host, one.protocol, one.port].append(one)
    return {"default": "deny", "allow": [_rule(key, grouped[key]) for key in sorted(grouped)]}


def _rule(key: tuple[str, Protocol, int], requests: Sequence[Seen]) -> dict[str, object]:
    host, protocol, port = key
    rule: dict[str, object] = {"cidr" if host[-1].isdigit() else "host": host}
    if protocol != "https":
        rule["protocol"] = protocol
    if all(port not in ports for ports in DEFAULT_PORTS[protocol]):
        rule["ports"] = [port]
    if protocol == "tcp":
        return rule
    rule["methods"] = sorted({one.method for one in requests})
    paths = _paths(requests)
    if paths is not None:
        rule["paths"] = paths
    if any(one.websocket for one in requests):
        rule["websocket"] = True
    return rule


def _paths(requests: Sequence[Seen]) -> list[str] | None:
    """Return patterns that fit all paths; None where only "any" does."""
    exact = {one.path.partition("?")[0] for one in requests}
    if any(one.cut for one in requests) or not all(map(_is_plain, exact)):
        return None
    if len(exact) <= FEW and all(map(_is_pattern, exact)):
        return sorted(exact)
    grouped: dict[str, set[str]] = defaultdict(set)
    for path in exact:
        grouped[path.split("/")[1]].add(path)
    patterns = sorted({pattern for first, paths in grouped.items() for pattern in _together(first, paths)})
    return patterns if len(patterns) <= MOST and all(map(_is_pattern, patterns)) else None


def _together(first: str, paths: set[str]) -> set[str]:
    """Return patterns for the paths that begin with the same segment."""
    below = {path for path in paths if path.count("/") > 1}
    return paths if len(paths) == 1 else (paths - below) | ({f"/{first}/**"} if below else set())


def _is_plain(path: str) -> bool:
    try:
        canonical_path(path)
    except AmbiguousPath:
        return False
    return True


def _is_pattern(path: str) -> bool:
    try:
        path_pattern(path)
    except InvalidArgument:
        return False
    return True
