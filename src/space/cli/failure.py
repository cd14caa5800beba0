"""Errors on their way out: which one counts, and how a command that runs another one exits."""

import contextlib
from collections.abc import Generator

import typer

from space.cli import output
from space.model.errors import SpaceError

OURS, CANNOT_START, NOT_FOUND = 125, 126, 127
_STATUS = {
    "command_not_found": NOT_FOUND,
    "permission_denied": CANNOT_START,
    "not_executable": CANNOT_START,
    "cannot_start": CANNOT_START,
}


def known(error: BaseException) -> SpaceError | OSError | None:
    """Return the first error in `error`, or in the group that it is, which says what is wrong; None for a defect."""
    if isinstance(error, SpaceError | OSError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := known(one)) is not None), None)
    return None


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
