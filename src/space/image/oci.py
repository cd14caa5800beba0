"""Images for containers, pulled from a registry and made the disk of a machine.

    registry --skopeo--> OCI layout --umoci--> tree --mke2fs--> ext4 image

Registry and image are strangers'. Each program runs in a jail: it sees /usr, its own working folder and nothing else,
only skopeo has a network, and that without a privilege. Nothing of an image is ever run here, or mounted; what has to
be changed in it (users, folders) is changed by the agent in a machine.

A registry is asked only where its address is public, or where the operator has named it: otherwise whoever may build
could have this host talk to its own network.
"""

import asyncio
import base64
import contextlib
import dataclasses
import ipaddress
import json
import os
import re
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pydantic

from space.host import files
from space.host.command import CommandError, run
from space.host.daemon import User, drop_privileges
from space.host.room import RESERVE_BYTES, free_bytes
from space.host.tasks import first
from space.image import ext4
from space.image.work import Log
from space.layout import Layout
from space.model import ranges
from space.model.errors import BuildFailed, StorageFull
from space.model.image_names import ImageName, read_image_name
from space.wire.builds import RegistryLogin

_ASK_S, _PULL_S, _UNPACK_S = 60.0, 1800.0, 1800.0
_POLL_S = 0.2
_LOGIN = "auth.json"
_DEFAULT_REGISTRY = "docker.io"
"""The one that is meant where a name has none."""

_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "python", "python3", "node", "irb", "jshell", "julia", "php", "-a"}
"""What an image runs to give a person a prompt: without a person it ends at once."""

_PATH = "/usr/sbin:/usr/bin"
_VISIBLE = (
    "/usr", "/etc/ssl", "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/containers", "/etc/mke2fs.conf",
)  # fmt: skip
_UNPACKING = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP", "MKNOD")
_READING = ("DAC_OVERRIDE",)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_MESSAGE = re.compile(r'msg="(.*)"$')


class _Config(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="ignore")

    user: str = pydantic.Field(default="", alias="User")
    env: list[str] | None = pydantic.Field(default=None, alias="Env")
    entrypoint: list[str] | None = pydantic.Field(default=None, alias="Entrypoint")
    cmd: list[str] | None = pydantic.Field(default=None, alias="Cmd")
    workdir: str = pydantic.Field(default="", alias="WorkingDir")


class _Image(pydantic.BaseModel):
    """https://github.com/opencontainers/image-spec: config.md, as far as it is looked at."""

    model_config = pydantic.ConfigDict(extra="ignore")

    architecture: str = ""
    os: str = ""
    config: _Config | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """An image of a registry. `digest` is its manifest's; `start` what it runs as a container, if that is a service."""

    name: ImageName
    digest: str
    env: Mapping[str, str]
    user: str
    workdir: str
    start: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Registries:
    """Which registries an operator has named: `host[:port]`, or `http://host[:port]` for one that speaks plain HTTP."""

    named: frozenset[str]
    plain: frozenset[str]

    @classmethod
    def of(cls, entries: Sequence[str]) -> "Registries":
        """Return them from a setting."""
        plain = {entry.removeprefix("http://") for entry in entries if entry.startswith("http://")}
        return cls(
            frozenset(entry.removeprefix("http://").removeprefix("https://") for entry in entries), frozenset(plain)
        )


class Puller:
    """Asks registries for images. `work` is a folder of the disk area that the caller removes."""

    def __init__(self, layout: Layout, registries: Registries, work: Path, log: Log) -> None:
        self._layout, self._registries, self._work, self._log = layout, registries, work, log

    async def inspect(self, reference: str, login: RegistryLogin | None) -> Image:
        """Return what there is under a name, for Linux on this processor.

        Raises InvalidArgument for what is no name, BuildFailed where it cannot be had.
        """
        name = read_image_name(reference)
        await _check_address(name, self._registries)
        with self._folder() as folder:
            self._write_login(folder, name, login)
            tells = ("inspect", "--no-tags", "--format", "{{.Digest}}"), ("inspect", "--config")
            digest, config = [await self._skopeo(folder, name, "", *tell, timeout_s=_ASK_S) for tell in tells]
        try:
            image = _Image.model_validate_json(config)
        except pydantic.ValidationError as error:
            raise BuildFailed(f"The configuration of image {name} makes no sense.") from error
        if (image.os, image.architecture) != ("linux", "amd64"):
            raise BuildFailed(f"Image {name} is for {image.os} on {image.architecture}, not for Linux on amd64.")
        said = image.config or _Config()
        pairs = [entry.partition("=") for entry in said.env or []]
        return Image(
            name=dataclasses.replace(name, digest=f"@{digest.strip()}"),
            digest=digest.strip(),
            env={key: value for key, equals, value in pairs if key and equals},
            user=said.user.partition(":")[0],
            workdir=said.workdir,
            start=_service([*(said.entrypoint or []), *(said.cmd or [])]),
        )

    async def pull(self, image: Image, login: RegistryLogin | None, target: Path, disk_mib: int) -> None:
        """Make `target` an ext4 image of this size with what is in the image. Raises BuildFailed, StorageFull."""
        await first(self._pull(image, login, target, disk_mib), self._watch_room())

    async def _pull(self, image: Image, login: RegistryLogin | None, target: Path, disk_mib: int) -> None:
        with self._folder() as folder:
            self._write_login(folder, image.name, login)
            self._log(f"Pulling {image.name}.")
            await self._skopeo(folder, image.name, "src-", "copy", target="oci:/work/image:pulled", timeout_s=_PULL_S)
            (folder / _LOGIN).unlink(missing_ok=True)
            self._log("Unpacking.")
            unpack = ("umoci", "--log=error", "unpack", "--image", "/work/image:pulled", "/work/bundle")
            await self._root(folder, "Unpacking the image", _UNPACKING, *unpack)
            self._log("Making its disk.")
            make = ext4.make_argv("/work/bundle/rootfs", "/work/disk", disk_mib=disk_mib, seed=uuid.uuid4())
            await self._root(folder, "Making a disk of the image", _READING, *make)
            (folder / "disk").chmod(0o600)
            (folder / "disk").rename(target)
            os.chown(target, 0, 0)

    async def _watch_room(self) -> None:
        """Raise StorageFull before a download, or what it unfolds to, has taken the room of everybody else."""
        while free_bytes(self._layout.disk_area) > 2 * RESERVE_BYTES:
            await asyncio.sleep(_POLL_S)
        raise StorageFull("The image does not fit into the host's disk area. Make room, or use a smaller one.")

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        """Give a folder that the puller's uid may write; what is in it may be anybody's."""
        with tempfile.TemporaryDirectory(dir=self._work, prefix="pull-") as name:
            folder = Path(name)
            files.make_dir(folder, mode=0o711, uid=self._layout.puller_uid, gid=self._layout.puller_uid)
            yield folder

    def _write_login(self, folder: Path, name: ImageName, login: RegistryLogin | None) -> None:
        if login is not None:
            both = f"{login.username}:{login.password.get_secret_value()}".encode()
            auths = {name.registry or _DEFAULT_REGISTRY: {"auth": base64.b64encode(both).decode()}}
            files.write_atomic(
                folder / _LOGIN, json.dumps({"auths": auths}), owner=self._layout.puller_uid, synced=False
            )

    async def _skopeo(
        self, folder: Path, name: ImageName, side: str, *arguments: str, target: str | None = None, timeout_s: float
    ) -> str:
        """Run skopeo for one image, as the puller; `side` is what its flags about the source begin with."""
        plain = name.registry in self._registries.plain
        login = ("--authfile", f"/work/{_LOGIN}") if (folder / _LOGIN).exists() else (f"--{side}no-creds",)
        program = (
            "skopeo", "--insecure-policy", "--override-os", "linux", "--override-arch", "amd64", "--tmpdir", "/work",
            *arguments, *login, f"--{side}tls-verify={'false' if plain else 'true'}",
            f"docker://{name}", *([target] if target else []),
        )  # fmt: skip
        drop = drop_privileges(User(self._layout.puller_uid, self._layout.puller_uid))
        walls = _walls(folder, ("SETUID", "SETGID", "SETPCAP"), network=True)
        try:
            return (await run(*walls, *drop, *program, timeout_s=timeout_s)).stdout
        except CommandError as error:
            raise BuildFailed(f"Image {name} could not be pulled: {_reason(error)}.{_cure(error)}") from error

    async def _root(self, folder: Path, what: str, capabilities: Sequence[str], *program: str) -> None:
        """Run a program as root of its jail, with these capabilities alone and no network."""
        try:
            await run(*_walls(folder, capabilities, network=False), *program, timeout_s=_UNPACK_S)
        except CommandError as error:
            raise BuildFailed(f"{what} failed: {_reason(error)}.") from error


def _walls(folder: Path, capabilities: Sequence[str], *, network: bool) -> tuple[str, ...]:
    """Return what a program is started behind: it sees /usr, a few files of /etc, and `folder` as /work."""
    seen = [word for path in _VISIBLE for word in ("--ro-bind-try", path, path)]
    kept = [word for name in capabilities for word in ("--cap-add", f"CAP_{name}")]
    return (
        "bwrap", "--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid", "--unshare-uts",
        "--unshare-cgroup-try", *(() if network else ("--unshare-net",)), "--clearenv", "--setenv", "PATH", _PATH,
        "--setenv", "HOME", "/work", "--setenv", "TMPDIR", "/work", "--cap-drop", "ALL", *kept,
        "--dir", "/etc", *seen, "--symlink", "usr/bin", "/bin", "--symlink", "usr/sbin", "/sbin",
        "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev",
        "--bind", str(folder), "/work", "--chdir", "/work", "--",
    )  # fmt: skip


def _service(argv: list[str]) -> tuple[str, ...]:
    """Return what an image runs as a container, if that is more than a prompt for a person."""
    words = [word for word in argv if word not in _SHELLS and Path(word).name not in _SHELLS]
    return tuple(argv) if words else ()


async def _check_address(name: ImageName, registries: Registries) -> None:
    """Raise BuildFailed where a registry is nobody's business to ask: not public, and not named by the operator."""
    registry = name.registry or _DEFAULT_REGISTRY
    if registry in registries.named:
        return
    host = registry.rpartition(":")[0] if ":" in registry else registry
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, 443, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BuildFailed(
            f"Registry {registry} was not found. Where images cannot be pulled, the operator can let {name} stand for "
            "a template (SPACE_IMAGES)."
        ) from error
    for _, _, _, _, address in found:
        if not _public(str(address[0])):
            raise BuildFailed(
                f"Registry {registry} has an address that is not public. The operator can name it in SPACE_REGISTRIES."
            )


def _public(text: str) -> bool:
    """Tell whether an address is one that any host of the internet could have."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        carried = address.ipv4_mapped or address.sixtofour
        return carried is None and address.is_global and address not in _NAT64
    return not any(address in network for network in ranges.NEVER)


def _reason(error: CommandError) -> str:
    """Return the last thing that a program said, of its own words only what follows `msg=`."""
    if error.status is None:
        return "it took too long"
    last = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
    said = _MESSAGE.search(last)
    return (said[1] if said else last).replace('\\"', '"')[-600:].rstrip(".")


def _cure(error: CommandError) -> str:
    if "server gave HTTP response to HTTPS client" in error.stderr:
        return " It speaks plain HTTP: the operator can name it in SPACE_REGISTRIES as http://host:port."
    return ""
