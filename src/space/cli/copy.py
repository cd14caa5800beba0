"""`space sandbox cp`: files and folders between this machine and a sandbox.

A file is streamed. A folder goes as one tar file, written to the other side and unpacked or read there; the guest needs
`tar`. What a guest sends is unpacked with suspicion: nothing lands outside the target folder, links that lead out are
left out, and no set-user-id bit comes along.
"""

import asyncio
import contextlib
import os
import shutil
import stat
import sys
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import rich.console
import rich.markup
import rich.progress

from space.cli.client import Api, Json
from space.cli.commands import Command
from space.cli.output import printable
from space.model.errors import InvalidArgument, NotFound, SpaceError
from space.model.ids import is_id, new_id

_CHUNK_BYTES = 256 * 1024


def parse_remote(text: str) -> tuple[str, str] | None:
    """Return sandbox id and path of `ID:PATH`; None for a local path."""
    sandbox, colon, path = text.partition(":")
    if not colon or not is_id(sandbox):
        return None
    if not path:
        raise InvalidArgument(f"{text!r} has no path; write {sandbox}:PATH.")
    return sandbox, path


class RemoteFiles:
    """The files of one sandbox, used as `user` (None is the guest's default)."""

    def __init__(self, api: Api, sandbox: str, user: str | None) -> None:
        self._api = api
        self._sandbox = sandbox
        self._as: Json = {"user": user} if user else {}

    async def upload(self, source: Path, target: str) -> None:
        """Copy a local file or folder; an existing folder as target takes it in, under its own name."""
        if not source.exists():
            raise NotFound(f"{source} does not exist on this machine.")
        entry = await self._stat(target)
        if target.endswith("/") or (entry and entry["type"] == "directory"):
            target = str(PurePosixPath(target) / source.resolve().name)
        if not source.is_dir():
            await self._put(source, target, f"{source.stat().st_mode & 0o7777:04o}")
            return
        with tempfile.TemporaryDirectory(prefix="space-cp-") as folder:
            packed = Path(folder) / "tar"
            await asyncio.to_thread(pack, source, packed)
            async with self._scratch() as remote:
                await self._put(packed, remote, "0600")
                await self._run("mkdir", "-p", "--", target)
                await self._run("tar", "-x", "-f", remote, "-C", target)

    async def download(self, source: str, target: Path) -> None:
        """Copy a file or folder of the sandbox; an existing local folder takes it in, under its own name."""
        entry = await self._stat(source)
        if entry is None:
            raise NotFound(f"{source} does not exist in the sandbox.")
        if target.is_dir():
            target = target / (PurePosixPath(entry["path"]).name or "root")
        if entry["type"] != "directory":
            await self._fetch(source, target)
            return
        with tempfile.TemporaryDirectory(prefix="space-cp-") as folder:
            packed = Path(folder) / "tar"
            async with self._scratch() as remote:
                await self._run("tar", "-c", "--hard-dereference", "-f", remote, "-C", source, ".")
                await self._fetch(remote, packed)
            await asyncio.to_thread(unpack, packed, target)

    async def _stat(self, path: str) -> Json | None:
        try:
            return await self._api.get(f"/v1/sandboxes/{self._sandbox}/files/stat", {"path": path, **self._as})
        except SpaceError as error:
            if error.slug != "no_such_file":
                raise
            return None

    @contextlib.asynccontextmanager
    async def _scratch(self) -> AsyncGenerator[str]:
        """Return the name of a file in the guest that is gone afterwards."""
        path = f"/tmp/.space-cp-{new_id()}"  # noqa: S108 - in the guest, with a name nobody can guess
        try:
            yield path
        finally:
            with contextlib.suppress(SpaceError):
                await self._api.call(
                    "DELETE", f"/v1/sandboxes/{self._sandbox}/files", params={"path": path, **self._as}
                )

    async def _put(self, source: Path, target: str, mode: str) -> None:
        size = source.stat().st_size
        with source.open("rb") as file, progress(f"to {target}", size) as advance:

            async def chunks() -> AsyncGenerator[bytes]:
                while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                    advance(len(chunk))
                    yield chunk

            params = {"path": target, "mode": mode, **self._as}
            path = f"/v1/sandboxes/{self._sandbox}/files"
            await self._api.call("PUT", path, params=params, content=chunks(), timeout_s=None)

    async def _fetch(self, source: str, target: Path) -> None:
        """Write to a file beside the target that takes its place only when it is whole."""
        path = f"/v1/sandboxes/{self._sandbox}/files"
        partial = target.with_name(f".space-cp-{new_id()}")  # not the target's name: with more it might be too long
        try:
            async with self._api.stream("GET", path, params={"path": source, **self._as}, silence_s=None) as answer:
                size = int(answer.headers.get("content-length", 0))
                with partial.open("wb") as file, progress(f"from {source}", size) as advance:
                    async for chunk in answer.aiter_bytes(_CHUNK_BYTES):
                        await asyncio.to_thread(file.write, chunk)
                        advance(len(chunk))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    async def _run(self, *args: str) -> None:
        said: list[bytes] = []
        command = Command(self._api, self._sandbox)
        ended = await command.run({"args": list(args), **self._as}, lambda _stream, data: said.append(data))
        if ended.status != 0:
            text = b"".join(said).decode(errors="replace").strip()[-1000:]
            raise SpaceError(f"{args[0]} in the sandbox ended with {ended.status}: {text}")


def pack(source: Path, archive: Path) -> None:
    """Write the contents of a folder into a tar file, with modes and without the owners' names of this machine."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(archive, "w") as tar:
        tar.add(source, arcname=".", filter=anonymous)


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tar file that a guest wrote into `target`, which is made.

    Only files, folders and links that stay inside; raises InvalidArgument for a name that leads out of `target`.
    """
    target.mkdir(parents=True, exist_ok=True)
    root = target.resolve()
    with tarfile.open(archive, "r:") as tar:
        for member in tar:
            place = _inside(root, member.name)
            if place == root:
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if member.isdir():
                if place.is_symlink():
                    place.unlink()
                place.mkdir(exist_ok=True)
                place.chmod(member.mode & 0o755 | stat.S_IRWXU)
            elif member.isfile():
                _write_file(cast("BinaryIO", tar.extractfile(member)), place, member.mode & 0o755)
            elif member.issym() and _stays_inside(root, place, member.linkname):
                place.unlink(missing_ok=True)
                place.symlink_to(member.linkname)


def _inside(root: Path, name: str) -> Path:
    """Return where a member goes. Its parent is resolved, so that a link unpacked before leads nowhere else."""
    parts = PurePosixPath(name).parts
    if PurePosixPath(name).is_absolute() or ".." in parts:
        raise InvalidArgument(f"The sandbox sent an archive with the name {name!r}; nothing more was unpacked.")
    place = root.joinpath(*parts)
    if place != root and not place.parent.resolve().is_relative_to(root):
        raise InvalidArgument(f"The sandbox sent an archive that leads outside by {name!r}; nothing more was unpacked.")
    return place


def _stays_inside(root: Path, place: Path, link: str) -> bool:
    return not PurePosixPath(link).is_absolute() and (place.parent / link).resolve().is_relative_to(root)


def _write_file(source: BinaryIO, place: Path, mode: int) -> None:
    place.unlink(missing_ok=True)
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(source, file, _CHUNK_BYTES)
        os.fchmod(file.fileno(), mode)


@contextlib.contextmanager
def progress(label: str, size: int) -> Generator[Callable[[int], None]]:
    """Show a bar on standard error, where that is a terminal."""
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(),
        rich.progress.DownloadColumn(),
        rich.progress.TransferSpeedColumn(),
        console=console,
        disable=not sys.stderr.isatty(),
        transient=True,
    ) as bar:
        task = bar.add_task(rich.markup.escape(printable(label)), total=size or None)
        yield lambda count: bar.advance(task, count)
