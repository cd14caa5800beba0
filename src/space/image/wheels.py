"""Wheels for a system's Python, fetched on the host and installed there without a network.

pip fetches them from the index that the host is configured for (pip.conf), for the guest's Python and not the host's,
each by the digest in the requirements; they are kept in the cache under the digest of these.
"""

import hashlib
import shutil
import sys
from pathlib import Path

from space.host import files
from space.host.room import HOST_CURE, check_room
from space.image.work import Log, stream
from space.layout import Layout

_FETCH_TIMEOUT_S = 900
_TARGET = (
    "--only-binary=:all:", "--implementation=cp", "--python-version=3.11",
    "--abi=cp311", "--abi=abi3", "--abi=none",
    "--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_17_x86_64", "--platform=manylinux2014_x86_64",
)  # fmt: skip
"""Debian 12's Python 3.11 with its glibc 2.36."""

WHEELS_BYTES = 512 * 1024**2
"""Room the wheels of one list take in the cache, with a margin."""


async def obtain(layout: Layout, requirements: Path, log: Log) -> Path:
    """Return a folder with the wheels of `requirements`, fetched where the cache has none. Raises CommandError."""
    digest = hashlib.sha256(requirements.read_bytes() + " ".join(_TARGET).encode()).hexdigest()
    folder = layout.cache_dir / "wheels" / digest
    if folder.is_dir():
        return folder
    check_room(layout.cache_dir, WHEELS_BYTES, "The wheels for a template's Python", HOST_CURE)
    files.make_dir(folder.parent, mode=0o700)
    fresh = layout.cache_dir / f"tmp-wheels-{digest[:16]}"
    shutil.rmtree(fresh, ignore_errors=True)
    await stream(
        log,
        sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet",
        "--no-deps", "--require-hashes", *_TARGET, f"--dest={fresh}", f"--requirement={requirements}",
        timeout_s=_FETCH_TIMEOUT_S,
    )  # fmt: skip
    for wheel in fresh.iterdir():
        files.sync_file(wheel)
    fresh.rename(folder)
    return folder
