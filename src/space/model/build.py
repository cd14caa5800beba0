"""What a template is built of: a source, steps, and what starts in the end. The words are those of a Dockerfile.

    RUN      [command, user?]               run by the login shell of the current user, in the current directory
    COPY     [source, target, owner?, mode?]  from an uploaded archive of the build's context (`files`)
    ENV      [name, value, ...]             `$NAME` and `${NAME}` in values are what they stand for by then
    WORKDIR  [path]                         made where it is missing
    USER     [name, "true"?]                made where it is missing; "true" lets it become root by sudo

Steps are numbered from 1; 0 is the source ("base"). What ENV, WORKDIR and USER say is the state: later steps go by it,
and commands in what starts from the template do.
"""

import dataclasses
import enum
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence

from space.model.errors import InvalidArgument

MAX_STEPS = 500
MAX_COMMAND_BYTES = 64 * 1024
MAX_ENV_BYTES = 64 * 1024
DEFAULT_USER = "user"
DEFAULT_WORKDIR = "/home/user"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE, FINALIZE = "base", "finalize"
"""The names of what comes before the first step and after the last."""

_FILES = re.compile(r"[0-9a-zA-Z_.-]{1,128}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODE = re.compile(r"[0-7]{1,4}")
_VARIABLE = re.compile(r"\\\$|\$(?:\{([A-Za-z_][A-Za-z0-9_]*)(?:(:[-+])([^}]*))?\}|([A-Za-z_][A-Za-z0-9_]*))")


class StepKind(enum.StrEnum):
    """What a step does."""

    RUN = "RUN"
    COPY = "COPY"
    ENV = "ENV"
    WORKDIR = "WORKDIR"
    USER = "USER"


_ARGUMENTS = {
    StepKind.RUN: (1, 2),
    StepKind.COPY: (2, 4),
    StepKind.ENV: (2, 2 * 1000),
    StepKind.WORKDIR: (1, 1),
    StepKind.USER: (1, 2),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step. `files` names the archive that a COPY is from; `force` does it again although a layer of it is kept."""

    kind: StepKind
    args: tuple[str, ...]
    files: str | None = None
    force: bool = False

    def __str__(self) -> str:
        """Return it as a line for a log."""
        return f"{self.kind} {' '.join(arg for arg in self.args if arg)}"[:500]


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """What later steps and, in the end, commands go by."""

    user: str = DEFAULT_USER
    workdir: str = DEFAULT_WORKDIR
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def canonical(self) -> str:
        """Return it as text: equal states have equal texts."""
        return json.dumps([self.user, self.workdir, dict(self.env)], sort_keys=True)


def read_step(kind: str, args: Sequence[str], files: str | None, *, force: bool) -> Step:
    """Return the step that a client describes; raises InvalidArgument, which names what is wrong with it."""
    try:
        known = StepKind(kind.upper())
    except ValueError:
        raise InvalidArgument(f"{kind[:40]!r} is no step: use {', '.join(StepKind)}.") from None
    least, most = _ARGUMENTS[known]
    if not least <= len(args) <= most:
        raise InvalidArgument(f"{known} takes {least} to {most} arguments; got {len(args)}.")
    if any("\0" in arg for arg in args) or sum(len(arg.encode()) for arg in args) > MAX_COMMAND_BYTES:
        raise InvalidArgument(f"{known}: the arguments have a NUL or over {MAX_COMMAND_BYTES} bytes in all.")
    _check(known, args, files)
    return Step(known, tuple(args), files, force)


def _check(kind: StepKind, args: Sequence[str], files: str | None) -> None:
    match kind:
        case StepKind.COPY:
            if files is None or not is_files_name(files):
                raise InvalidArgument("COPY needs the name of the uploaded files (filesHash).")
            if len(args) > 3 and args[3] and not _MODE.fullmatch(args[3]):
                raise InvalidArgument(f"COPY: {args[3][:20]!r} is no mode; use octal digits like 0755.")
        case StepKind.ENV:
            if len(args) % 2:
                raise InvalidArgument("ENV takes names and values in turn.")
            for name in args[::2]:
                if not _ENV_NAME.fullmatch(name):
                    raise InvalidArgument(f"ENV: {name[:40]!r} cannot be the name of a variable.")
        case StepKind.RUN | StepKind.WORKDIR | StepKind.USER:
            if not args[0].strip():
                raise InvalidArgument(f"{kind}: the argument is empty.")


def is_files_name(text: str) -> bool:
    """Tell whether a text may name uploaded files; it becomes part of a path."""
    return _FILES.fullmatch(text) is not None and text.strip(".") != ""


def expanded(text: str, env: Mapping[str, str]) -> str:
    r"""Return a text with `$NAME`, `${NAME}`, `${NAME:-otherwise}` and `${NAME:+instead}` replaced; `\$` is a dollar.

    A variable that is not set is empty, as in a Dockerfile.
    """

    def value(found: re.Match[str]) -> str:
        if found[0] == r"\$":
            return "$"
        known = env.get(found[1] or found[4], "")
        if found[2] == ":-":
            return known or found[3]
        if found[2] == ":+":
            return found[3] if known else ""
        return known

    return _VARIABLE.sub(value, text)


def after(state: State, step: Step) -> State:
    """Return the state after a step. Raises InvalidArgument where the environment grows beyond what a guest takes."""
    match step.kind:
        case StepKind.ENV:
            known = {"PATH": DEFAULT_PATH, "USER": state.user, **state.env}
            given = {name: expanded(value, known) for name, value in zip(step.args[::2], step.args[1::2], strict=True)}
            env = {**state.env, **given}
            if sum(len(name.encode()) + len(value.encode()) for name, value in env.items()) > MAX_ENV_BYTES:
                raise InvalidArgument(f"ENV: the environment is over {MAX_ENV_BYTES} bytes in all.")
            return dataclasses.replace(state, env=env)
        case StepKind.WORKDIR:
            path = posixpath.join(state.workdir, expanded(step.args[0], state.env))
            return dataclasses.replace(state, workdir=posixpath.normpath("/" + path.lstrip("/")))
        case StepKind.USER:
            return dataclasses.replace(state, user=expanded(step.args[0], state.env).partition(":")[0])
        case StepKind.RUN | StepKind.COPY:
            return state


def changes_disk(before: State, step: Step) -> bool:
    """Tell whether a step does anything but change the state."""
    return step.kind is not StepKind.ENV or after(before, step).env.get("PATH") != before.env.get("PATH")


def first_key(scope: str, source: str) -> str:
    """Return the key of a source as the first layer. `scope` keeps the layers of projects apart."""
    return _hash(["source", scope, source])


def next_key(key: str, state: State, step: Step) -> str:
    """Return the key of the layer that a step makes of the one before.

    The name of a COPY's files stands for their content: who names them (the scope's own clients) hashes them.
    """
    return _hash(["step", key, state.canonical(), step.kind, list(step.args), step.files])


def last_key(key: str, state: State, start: str | None, ready: str | None, machine: str) -> str:
    """Return the key of a finished template. `machine`: what it is booted with, and its size."""
    return _hash(["finish", key, state.canonical(), start, ready, machine])


def _hash(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
