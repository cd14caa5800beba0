"""`space`: the commands, and how their errors and exit statuses come out.

1 is an error of ours, 2 a wrong command line, 130 Ctrl-C. `run`, `exec` and `shell` exit with the command's own status,
and with 125 to 127 for errors of ours (`failure.beside_a_command`).
"""

import importlib.metadata
import os
import sys
from typing import Annotated, NoReturn

import typer

from space.cli import doctor, down, egress, failure, key, lifecycle, output, policy, run, sandbox, secret, template, up
from space.model.errors import SpaceError

BROKEN_PIPE = 141
"""128 + SIGPIPE: what a shell shows for a program whose reader went away."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="SPACE: a disposable microVM for every task. On the host: up, down, doctor. With a key: the rest.",
)
app.command("up")(up.up)
app.command("down")(down.down)
app.command("doctor")(doctor.doctor)
app.command("run")(run.run)
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(template.app, name="template")
app.add_typer(lifecycle.snapshots, name="snapshot")
app.add_typer(policy.app, name="policy")
app.add_typer(secret.app, name="secret")
app.add_typer(egress.app, name="egress")
app.add_typer(key.app, name="key")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"space {importlib.metadata.version('space-sandbox')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that every command has."""


def main() -> NoReturn:
    """Run the command line and exit."""
    _open_missing_streams()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(run.INTERRUPTED)
    except (SpaceError, OSError, BaseExceptionGroup) as error:
        problem = failure.known(error)
        if problem is None:
            raise
        _exit_with(problem)
    sys.exit(0)


def _open_missing_streams() -> None:
    """Open /dev/null for each standard stream that was closed, so that its number is no other file's (POSIX exec)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - open until the process ends


def _exit_with(problem: BaseException) -> NoReturn:
    if isinstance(problem, BrokenPipeError):
        sys.stderr.close()  # nothing more can be said about standard output
        sys.exit(BROKEN_PIPE)
    output.error(str(problem))
    sys.exit(1)


if __name__ == "__main__":
    main()
