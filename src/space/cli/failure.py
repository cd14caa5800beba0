"""Errors on their way out: which one counts, and how a command that runs another one exits."""

import contextlib
from collections.abc import Generator

import typer

from space.cli import output
from space.host.tasks import first_of
from space.model.errors import SpaceError

OURS, CANNOT_START, NOT_FOUND = 125, 126, 127
_STATUS = {
    "command_not_found": NOT_FOUND,
    "permission_denied": CANNOT_START,
    "not_executable": CANNOT_START,
    "cannot_start": CANNOT_START,
}


def known(error: BaseException) -> SpaceError | OSError | None:
    """Return the first error in `error` that says what is wrong; None for a defect."""
    return first_of(error, SpaceError) or first_of(error, OSError)


@contextlib.contextmanager
def beside_a_command() -> Generator[None]:
    """Keep errors of ours apart from the status of the command that is run inside.

    They exit as those of env(1) and its like: 127 where there is no such program, 126 where it cannot be started, 125
    for everything else.
    """
    try:
        yield
    except (SpaceError, OSError, BaseExceptionGroup) as error:
        problem = known(error)
        if problem is None or isinstance(problem, BrokenPipeError):
            raise
        output.error(str(problem))
        slug = problem.slug if isinstance(problem, SpaceError) else ""
        raise typer.Exit(_STATUS.get(slug, OURS)) from None
