"""Programs of others that a bench needs, beside the system: nothing is installed, no service is started.

Debian's packages are fetched with what they need and unpacked into a folder; mitmproxy gets an environment of its own.
"""

import shutil
import sys
from pathlib import Path

from space.host import command
from space.proxy import envoy

CACHE = Path(__file__).parents[1] / ".cache" / "bench"
_ROOT = CACHE / "root"
_FETCH_S = 300


async def debian(package: str, binary: str) -> tuple[Path, dict[str, str]]:
    """Return a program of a Debian package, and the environment it runs with; fetches it the first time.

    One that the system has is taken as it is.
    """
    own = next((_ROOT / place / binary for place in ("usr/bin", "usr/sbin") if (_ROOT / place / binary).exists()), None)
    if own is None and (found := shutil.which(binary)) is not None:
        return Path(found), {}
    if own is None:
        await _unpack(package)
        return await debian(package, binary)
    libraries = _ROOT / "usr" / "lib"
    return own, {"LD_LIBRARY_PATH": ":".join(str(folder) for folder in (*libraries.glob("*-linux-gnu"), libraries))}


def part(path: str) -> Path:
    """Return a file of an unpacked package by its usual path, or the system's own."""
    own = _ROOT / path.lstrip("/")
    return own if own.exists() else Path(path)


async def _unpack(package: str) -> None:
    archives = CACHE / "archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    options = ("--yes", "--no-install-recommends", "--download-only", "-o", f"Dir::Cache::archives={archives}")
    await command.run("apt-get", "install", *options, package, timeout_s=_FETCH_S)
    for archive in sorted(archives.glob("*.deb")):
        await command.run("dpkg-deb", "--extract", str(archive), str(_ROOT), timeout_s=60)


async def mitmproxy() -> Path:
    """Return `mitmdump`."""
    home = CACHE / "mitmproxy"
    binary = home / "bin" / "mitmdump"
    if not binary.exists():
        # the interpreter of this environment, which a process without rights can read
        await command.run(sys.executable, "-m", "venv", str(home), timeout_s=60)
        argv = (
            str(home / "bin" / "pip"),
            "install",
            "--disable-pip-version-check",
            "--no-input",
            "--quiet",
            "mitmproxy",
        )
        await command.run(*argv, timeout_s=_FETCH_S)
    return binary


async def envoy_version() -> str:
    """Return which Envoy SPACE runs."""
    return (await command.run(str(envoy.binary()), "--version")).stdout.split("/")[-4]
