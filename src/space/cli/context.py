"""The context of a build: which files a COPY means, and the archive they go up in.

Archives are the same for the same files, whoever makes them and when: owners and times are left out, so that files
which have not changed are not sent again, nor their step done again.
"""

import fnmatch
import gzip
import hashlib
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from space.model.errors import InvalidArgument

IGNORE = ".dockerignore"
_CHUNK_BYTES = 1024 * 1024


def archive(context: Path, source: str) -> tuple[IO[bytes], str]:
    """Return an open archive of what `source` means in `context`, and its SHA-256; InvalidArgument for nothing."""
    names = sorted(_meant(context, source))
    if not names:
        raise InvalidArgument(f"COPY: there is nothing called {source!r} in {context}, or {IGNORE} leaves it out.")
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's
    with (
        gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in names:
            tar.add(context / name, arcname=name, recursive=False, filter=_plain)
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    file.seek(0)
    return file, digest.hexdigest()


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def _meant(context: Path, source: str) -> Iterator[str]:
    path = PurePosixPath(os.path.normpath(source.lstrip("/")))
    if ".." in path.parts:
        raise InvalidArgument(f"COPY: {source!r} leads out of the context.")
    ignored = _patterns(context)
    roots = [context] if str(path) == "." else sorted(context.glob(str(path)))
    for root in roots:
        yield from _walk(context, root, ignored)


def _walk(context: Path, at: Path, ignored: list[str]) -> Iterator[str]:
    name = at.relative_to(context).as_posix()
    if name != ".":
        if not _left_out(name, ignored):
            yield name
        elif not any(pattern.startswith("!") for pattern in ignored):
            return
    if at.is_dir() and not at.is_symlink():
        for entry in sorted(at.iterdir()):
            yield from _walk(context, entry, ignored)


def _patterns(context: Path) -> list[str]:
    try:
        lines = (context / IGNORE).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _left_out(name: str, patterns: list[str]) -> bool:
    """Tell what the last pattern that fits says; one that fits a folder fits all in it."""
    path = PurePosixPath(name)
    names = [name, *(parent.as_posix() for parent in path.parents if parent.as_posix() != ".")]
    out = False
    for pattern in patterns:
        bare = pattern.removeprefix("!").strip("/")
        forms = (bare, bare.removeprefix("**/"))
        if any(fnmatch.fnmatchcase(one, form) for one in names for form in forms):
            out = not pattern.startswith("!")
    return out
