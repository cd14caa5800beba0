"""The options that say when a sandbox is put away."""

import enum
from typing import Annotated

import typer

from space.cli.client import Json
from space.model.errors import InvalidArgument
from space.model.sandbox import DEFAULT_IDLE_TIMEOUT_S

_DIGITS = 18


class OnTimeout(enum.StrEnum):
    """What happens when the timeout comes."""

    DELETE = "delete"
    SUSPEND = "suspend"


Lifetime = Annotated[
    str | None, typer.Option("--lifetime", metavar="SECONDS", help="End it after this time whatever it does; `none`.")
]
Idle = Annotated[
    str | None,
    typer.Option(
        "--idle-timeout",
        metavar="SECONDS",
        help=f"Suspend it after this long unused (default: {DEFAULT_IDLE_TIMEOUT_S}); `none`.",
    ),
]
AtEnd = Annotated[OnTimeout | None, typer.Option("--on-timeout", help="What happens at the end of its lifetime.")]
AutoResume = Annotated[
    bool | None, typer.Option("--auto-resume/--no-auto-resume", help="Whether a request to it wakes it.")
]


def deadlines(lifetime: str | None, idle: str | None, at_end: OnTimeout | None, auto_resume: bool | None) -> Json:
    """Return the fields of a body for these options, with only what was given; raises InvalidArgument."""
    found: Json = {}
    if at_end is not None:
        found["on_timeout"] = at_end.value
    if auto_resume is not None:
        found["auto_resume"] = auto_resume
    for field, option, text in (("timeout_s", "--lifetime", lifetime), ("idle_timeout_s", "--idle-timeout", idle)):
        if text is None:
            continue
        if text != "none" and not (text.isdecimal() and len(text) <= _DIGITS):
            raise InvalidArgument(f"{option}: {text!r} is neither a number of seconds nor `none`.")
        found[field] = None if text == "none" else int(text)
    return found
