"""The first API key: made by the api's own program, which alone may use the database, and kept here for the CLI."""

from pathlib import Path

from space.cli.supervisor import DaemonSpec, last_words
from space.host import command
from space.host.command import CommandError
from space.host.daemon import drop_privileges
from space.host.files import write_atomic
from space.layout import Layout
from space.model.errors import Unavailable
from space.model.ids import is_api_key

_ENSURE_S = 60


async def ensure(layout: Layout, api: DaemonSpec) -> str | None:
    """Make sure that the key kept on this host works; return a new one where there was none, or it did not.

    The database's schema is brought up to date on the way. Raises Unavailable where that fails.
    """
    assert api.user is not None
    try:
        present = layout.api_key_file.read_bytes()
    except FileNotFoundError:
        present = b""
    argv = (*drop_privileges(api.user), *api.argv, "--ensure-key")
    try:
        # on standard input: an argument could be read by every user of the host
        done = await command.run(*argv, stdin=present, env=api.env, cwd=Path("/"), timeout_s=_ENSURE_S)
    except CommandError as error:
        words = "\n".join(last_words(error.stderr.strip().splitlines()))
        raise Unavailable(f"The database could not be prepared: {words}") from error
    made = done.stdout.strip()
    if not is_api_key(made):
        return None
    write_atomic(layout.api_key_file, made + "\n", mode=0o600)
    return made
