"""The part of Dockerfiles that templates are built from.

    FROM name                        a template of the project, or an image
    RUN command | ["program", ...]
    COPY [--chown=user[:group]] [--chmod=mode] source... target
    ENV NAME=value ... | NAME value
    WORKDIR path     USER name
    CMD, ENTRYPOINT                  what is started at each boot, as in a container

LABEL, EXPOSE, MAINTAINER and STOPSIGNAL say nothing to a machine and are passed over. All else is refused, with its
line: a build that leaves out what it does not know makes something else than was written.
"""

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator

from space.model.build import Step, StepKind, read_step
from space.model.errors import InvalidArgument

PASSED_OVER = frozenset({"LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL"})
_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?\s*")
_ENV_PAIR = re.compile(r"""([A-Za-z_][A-Za-z0-9_]*)=((?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')*)\s*""", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """A COPY whose sources are still in the build's context."""

    source: str
    target: str
    owner: str
    mode: str


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """What a file says. `passed_over` are its instructions that mean nothing here."""

    source: str
    steps: tuple[Step | Copy, ...]
    start: str | None
    passed_over: tuple[str, ...]


def parse(text: str) -> Recipe:
    """Return what a Dockerfile says; raises InvalidArgument, naming the line."""
    source: str | None = None
    steps: list[Step | Copy] = []
    ends: dict[str, list[str]] = {}
    passed_over: list[str] = []
    for number, line in _instructions(text):
        found = _INSTRUCTION.fullmatch(line)
        if found is None:
            raise InvalidArgument(f"Line {number}: {line[:60]!r} is no instruction.")
        name, rest = found[1].upper(), (found[2] or "").strip()
        try:
            if name == "FROM":
                source = _from(rest, source)
            elif source is None:
                raise InvalidArgument(f"{name} comes before FROM.")  # noqa: TRY301 - it is given its line below
            elif name in PASSED_OVER:
                passed_over.append(f"{name} (line {number})")
            elif name in ("CMD", "ENTRYPOINT"):
                ends[name] = _ending(rest)
            else:
                steps += _steps(name, rest)
        except InvalidArgument as error:
            raise InvalidArgument(f"Line {number}: {error}") from None
    if source is None:
        raise InvalidArgument("The file has no FROM.")
    start = " ".join([*ends.get("ENTRYPOINT", []), *ends.get("CMD", [])])
    return Recipe(source, tuple(steps), start or None, tuple(passed_over))


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction with the number of its first line: comments gone, continued lines joined."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not parts):
            continue
        if not parts:
            begun = number
        stripped = line.rstrip()
        if stripped.endswith("\\"):
            parts.append(stripped[:-1])
            continue
        if stripped or not parts:
            parts.append(stripped)
            yield begun, "".join(parts)
            parts = []
    if parts:
        yield begun, "".join(parts)


def _from(rest: str, before: str | None) -> str:
    if before is not None:
        raise InvalidArgument("a second FROM: builds have one stage here.")
    words = rest.split()
    if len(words) != 1:
        raise InvalidArgument("FROM takes one name: no platform, and no stage to name.")
    return words[0]


def _steps(name: str, rest: str) -> list[Step | Copy]:
    match name:
        case "RUN":
            if rest.startswith("--"):
                raise InvalidArgument("RUN takes no flags here.")
            argv = _json(rest)
            return [_step(StepKind.RUN, rest if argv is None else shlex.join(argv))]
        case "COPY":
            return list(_copies(rest))
        case "ENV":
            return [_step(StepKind.ENV, *_env(rest))]
        case "WORKDIR" | "USER":
            words = _words(rest)
            if len(words) != 1:
                raise InvalidArgument(f"{name} takes one argument.")
            return [_step(StepKind(name), words[0])]
    raise InvalidArgument(f"{name} is not supported; docs/howto/templates.md lists what is.")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidArgument(f"{text[:40]!r}: {error}.") from None


def _step(kind: StepKind, *args: str) -> Step:
    return read_step(kind, args, None, force=False)


def _copies(rest: str) -> Iterator[Copy]:
    owner, mode = "", ""
    while (flag := _FLAG.match(rest)) is not None:
        if flag[1] == "chown" and flag[2]:
            owner = flag[2]
        elif flag[1] == "chmod" and flag[2] and re.fullmatch("[0-7]{1,4}", flag[2]):
            mode = flag[2]
        else:
            raise InvalidArgument(f"COPY: {flag[0].strip()} is not supported.")
        rest = rest[flag.end() :]
    words = _json(rest) or _words(rest)
    if len(words) < 2:
        raise InvalidArgument("COPY takes sources and a target.")
    *sources, target = words
    if len(sources) > 1 and not target.endswith("/"):
        raise InvalidArgument("COPY of several sources needs a target that ends with /.")
    if any(source.startswith("<<") for source in sources):
        raise InvalidArgument("COPY takes no text of the file itself.")
    for source in sources:
        yield Copy(source, target, owner, mode)


def _env(rest: str) -> list[str]:
    """Return names and values in turn, of either form. Quotes go; `$NAME` stays, for the build to replace."""
    if _ENV_PAIR.match(rest) is None:
        name, _, value = rest.partition(" ")
        return [name, value.strip()]
    found: list[str] = []
    at = 0
    while at < len(rest):
        pair = _ENV_PAIR.match(rest, at)
        if pair is None:
            raise InvalidArgument(f"ENV: {rest[at : at + 40]!r} is no NAME=value.")
        found += [pair[1], _unquoted(pair[2])]
        at = pair.end()
    return found


def _unquoted(text: str) -> str:
    """Take quotes and escapes away, but for an escaped dollar, which the build reads."""
    return re.sub(
        r"""\\\$|\\(.)|"((?:[^"\\]|\\.)*)"|'([^']*)'""",
        lambda m: m[0] if m[0] == r"\$" else m[1] or (_unquoted(m[2]) if m[2] is not None else (m[3] or "")),
        text,
        flags=re.DOTALL,
    )


def _ending(rest: str) -> list[str]:
    """Return the words of a command for the shell; the form of a list is quoted for it."""
    argv = _json(rest)
    return [rest] if argv is None else [shlex.join(argv)] if argv else []


def _json(text: str) -> list[str] | None:
    """Return a list of strings in JSON; None for what is none, which is a line for the shell."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(word, str) for word in found) else None
