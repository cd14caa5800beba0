"""Settings: one frozen object per process, and the only place that reads the environment.

`space up` reads `SPACE_*` variables and its own flags; an unknown `SPACE_*` name refuses to start, so that a typing
error is not a silent default. Our server processes read no environment: each gets a JSON file of its own (0600, its
uid's), so secrets appear neither in argv nor in the environment.
"""

import difflib
import json
import os
import re
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import pydantic
from pydantic import SecretStr

from space.layout import Layout
from space.model.errors import InvalidArgument
from space.model.image_names import read_image_map

LogLevel = Literal["debug", "info", "warning", "error"]
DriverChoice = Literal["auto", "qemu-kvm", "qemu-tcg"]


def _split(value: object) -> object:
    return value.replace(",", " ").split() if isinstance(value, str) else value


Addresses = Annotated[tuple[IPv4Address, ...], pydantic.BeforeValidator(_split)]
"""In the environment separated by commas."""
Names = Annotated[tuple[str, ...], pydantic.BeforeValidator(_split)]
Networks = Annotated[tuple[IPv4Network, ...], pydantic.BeforeValidator(_split)]

_REGISTRY = re.compile(r"(https?://)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[1-9][0-9]{0,4})?")


def _check_registries(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        if not _REGISTRY.fullmatch(entry):
            raise ValueError(f"{entry[:100]!r} is no registry, such as registry.example:5000 or http://127.0.0.1:5000")
    return entries


def _check_images(entries: tuple[str, ...]) -> tuple[str, ...]:
    try:
        read_image_map(entries)
    except InvalidArgument as error:
        raise ValueError(str(error).removesuffix(".")) from None
    return entries


_DOMAIN = re.compile(r"(?!-)[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*(:[1-9][0-9]{0,4})?")
_OTHERS = ("e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev", "e2b-tango.dev", "e2b-juliett.dev")


def _check_domain(text: str) -> str:
    """Return a domain in lower case; ValueError for what is none, or one that E2B's clients take for E2B's own."""
    domain = text.lower()
    if not _DOMAIN.fullmatch(domain):
        raise ValueError("a domain is meant, such as sandboxes.example.com or sandboxes.example.com:8443")
    if domain.partition(":")[0].removeprefix("foxtrot-2.") in _OTHERS:
        raise ValueError("clients of E2B take this domain for E2B's own; use one of yours")
    return domain


Domain = Annotated[str, pydantic.AfterValidator(_check_domain)]

DEFAULT_PORT = 8080
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
DEFAULT_DATA_DIR = Path("/var/lib/space")


class _Settings(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class HostSettings(_Settings):
    """What `space up` and the other commands on the host need. Each field is `SPACE_<NAME>` in the environment."""

    data_dir: Path = DEFAULT_DATA_DIR
    """Where everything is kept. On btrfs it is used as it is; elsewhere fallocated btrfs images are made in it."""

    host: str = "127.0.0.1"
    """Address the edge listens on. Anything but loopback should have TLS in front."""

    port: int = pydantic.Field(default=DEFAULT_PORT, ge=0, le=65535)
    """TCP port of the edge."""

    domain: Domain | None = None
    """Names below it stand for sandboxes' ports: `<port>-<id>.<domain>` for each sandbox and port, and anything else
    for the API. `:port` belongs to it where clients reach the edge at another port than 443. None: clients say by
    headers which sandbox they mean; a name whose first label is `<port>-<id>` is understood below any domain."""

    tls_cert: Path | None = None
    """PEM file of the edge's certificate, those of its issuers after it, for `*.<domain>`. Together with `tls_key` it
    makes the edge speak HTTPS, and HTTP to this host alone. Both files are read again when they change."""

    tls_key: Path | None = None
    """PEM file of its private key, without a passphrase; only root has to be able to read it."""

    database_url: SecretStr | None = None
    """`postgresql://...` of a server to use; None starts an embedded one in the data folder."""

    secret_key_file: Path | None = None
    """Master keys that secrets are encrypted with in the database, one on each line, the newest first.

    None: `secret-key` in the data folder, made at the first start. Stored secrets are lost with it: keep a copy.
    """

    disk_gib: int | None = pydantic.Field(default=None, ge=2)
    """Size of the disk area where the data folder is not btrfs; None takes what the memory area leaves of 60 % of what
    is free, 4 to 64 GiB."""

    memory_gib: int | None = pydantic.Field(default=None, ge=1)
    """RAM admitted for guests, and what the memory area on disk is made for: it takes an eighth and 0.5 GiB more.

    None takes half of the host's RAM, or as many GiB as a quarter of the free disk has, whichever is less.
    """

    driver: DriverChoice = "auto"
    """`auto` boots a tiny guest to find out whether KVM works here, else software emulation."""

    slot_pool: int = pydantic.Field(default=4, ge=0, le=64)
    """Network slots kept ready; making one takes about 10 ms of a create."""

    warm_pool: int = pydantic.Field(default=2, ge=0, le=64)
    """Clones kept ready for each template and size that was asked for within an hour; each takes its memory."""

    uplink: str = pydantic.Field(default="host", min_length=1)
    """Where what sandboxes may reach is: `host`, the host's own network; the name of a network namespace (`ip netns`),
    such as one that a VPN ends in; or `none`: nothing leaves, whatever a policy says."""

    resolvers: Addresses | None = None
    """Name servers that the gateway asks, seen from the uplink; None takes those of the host's resolv.conf, or of
    systemd-resolved behind it. A server on loopback cannot be asked from there."""

    upstream_ca: Path | None = None
    """PEM file of root certificates that servers outside are verified with besides the system's; read at the start."""

    never_except: Networks = ()
    """Ranges that are reachable although they are set apart for private or special use, for every sandbox whose policy
    allows the name behind. For test worlds only: what is meant for one sandbox belongs in its policy."""

    registries: Annotated[Names, pydantic.AfterValidator(_check_registries)] = ()
    """Registries of images that templates may be built from although their address is not public: `host[:port]`, or
    `http://host[:port]` for one that speaks plain HTTP. Any public one may be asked over TLS."""

    images: Annotated[Names, pydantic.AfterValidator(_check_images)] = ()
    """Images that stand for templates: `ubuntu:*=base,debian:12=base`. The first that fits decides; `e2bdev/base*=base`
    comes last by itself."""

    log_level: LogLevel = "info"


class ClientSettings(_Settings):
    """What the command line needs to talk to an API."""

    url: str = DEFAULT_URL
    api_key: SecretStr | None = None
    data_dir: Path = DEFAULT_DATA_DIR
    """Where the key is looked for when `api_key` is None: `<data_dir>/api-key`."""


class ProcessSettings(_Settings):
    """What every server process is given."""

    data_dir: Path
    instance: str
    uid_base: int
    log_level: LogLevel = "info"

    def layout(self) -> Layout:
        """Return the paths and ids of the instance."""
        return Layout(self.data_dir, self.instance, self.uid_base)


class WorkerSettings(ProcessSettings):
    """Of the worker (root)."""

    memory_mib: int
    """RAM admitted for all guests together."""

    disk_gib: int | None = None
    """See HostSettings.disk_gib."""

    slot_pool: int
    warm_pool: int
    driver: DriverChoice
    uplink: str
    resolvers: Addresses
    never_except: Networks
    registries: Names = ()
    code_dir: Path
    """The folder that holds `agent/`, from which the guest agent is built."""


class GatewaySettings(ProcessSettings):
    """Of the gateway."""

    resolvers: Addresses = ()
    never_except: Networks = ()

    roots: Path | None = None
    """PEM bundle that servers' certificates are verified with; None is the system's."""


class RedactorSettings(ProcessSettings):
    """Of the redactor."""


class ApiSettings(ProcessSettings):
    """Of the api."""

    database_url: SecretStr

    domain: str | None = None
    """See HostSettings.domain."""

    secret_keys: tuple[SecretStr, ...]
    """Master keys for what is sealed in the database, the newest first; 64 hex digits each."""

    images: Names = ()


_CLIENT_ONLY = {"url", "api_key"}
T = TypeVar("T", bound=_Settings)


def _from_environment() -> dict[str, str]:
    known = set(HostSettings.model_fields) | set(ClientSettings.model_fields)
    found: dict[str, str] = {}
    for variable, value in os.environ.items():  # noqa: TID251 - the one place
        if not variable.startswith("SPACE_"):
            continue
        name = variable.removeprefix("SPACE_").lower()
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean SPACE_{near[0].upper()}?" if near else ""
            raise InvalidArgument(f"{variable} is not a setting of SPACE; unset it.{hint}")
        found[name] = value
    return found


def _validated(cls: type[T], values: dict[str, object]) -> T:
    try:
        return cls.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = f"SPACE_{first['loc'][0]}".upper()
        words = re.sub(r"^Input (should )?|^Value error, ", lambda found: "must " if found[1] else "", first["msg"])
        raise InvalidArgument(f"{name}: {words}.") from error


def _load(cls: type[T], overrides: dict[str, object]) -> T:
    values: dict[str, object] = {k: v for k, v in _from_environment().items() if k in cls.model_fields}
    values |= {k: v for k, v in overrides.items() if v is not None}
    return _validated(cls, values)


def host_settings(**overrides: object) -> HostSettings:
    """Read the host's settings: environment below, `overrides` that are not None above."""
    return _load(HostSettings, overrides)


def client_settings(**overrides: object) -> ClientSettings:
    """Read the command line's settings: environment below, `overrides` that are not None above."""
    return _load(ClientSettings, overrides)


def read_process_settings(cls: type[T], path: Path) -> T:
    """Read the settings file that a server process was started with."""
    return _validated(cls, json.loads(path.read_text()))


def dump_process_settings(settings: ProcessSettings) -> str:
    """Return the settings as the text of such a file, secrets in clear: the caller writes it 0600."""

    def plain(value: object) -> object:
        return value.get_secret_value() if isinstance(value, SecretStr) else str(value)

    return json.dumps(settings.model_dump(), default=plain)


def search_path() -> str:
    """Return PATH for the programs we run: the system folders only, whatever the caller's shell has."""
    return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
