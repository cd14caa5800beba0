"""What clients send: bodies with E2B's names for fields. What a newer client sends beside these is ignored."""

import pydantic

from space.e2b.request import Body
from space.model.policy_upstream import MAX_CA, MAX_CREDENTIAL, MAX_DNS_SERVERS
from space.model.sandbox import MAX_FORKS, MAX_TIMEOUT_S


class AutoResume(Body):
    """Whether a request to a paused sandbox resumes it."""

    enabled: bool = False


class VolumeMount(Body):
    """A volume to mount."""

    name: str
    path: str


class Transform(Body):
    """Headers that requests get on their way out; a value may name secrets, `${e2b.secrets.NAME}`."""

    headers: dict[str, str] = pydantic.Field(default={})


class Rule(Body):
    """What is done to requests for one host."""

    transform: Transform = pydantic.Field(default_factory=Transform)


class EgressProxyTls(Body):
    """TLS to the proxy; a name and authorities to verify it with."""

    enabled: bool = True
    server_name: str | None = pydantic.Field(default=None, alias="serverName", max_length=253)
    ca_cert: str | None = pydantic.Field(default=None, alias="caCert", max_length=MAX_CA)


class EgressProxy(Body):
    """The SOCKS5 proxy that everything goes through."""

    address: str = pydantic.Field(max_length=260)
    username: str | None = pydantic.Field(default=None, max_length=MAX_CREDENTIAL)
    password: pydantic.SecretStr | None = pydantic.Field(default=None, max_length=MAX_CREDENTIAL)
    tls: EgressProxyTls | None = None


class Egress(Body):
    """What may leave a sandbox; e2b/network.py says how it is read."""

    allow_out: list[str] = pydantic.Field(default=[], alias="allowOut", max_length=256)
    deny_out: list[str] = pydantic.Field(default=[], alias="denyOut", max_length=256)
    dns_servers: list[str] = pydantic.Field(default=[], alias="dnsServers", max_length=MAX_DNS_SERVERS)
    egress_proxy: EgressProxy | None = pydantic.Field(default=None, alias="egressProxy")
    rules: dict[str, list[Rule]] = pydantic.Field(default={})


class Network(Egress):
    """What may leave a sandbox, and what may come in."""

    allow_public_traffic: bool = pydantic.Field(default=True, alias="allowPublicTraffic")
    mask_request_host: str | None = pydantic.Field(default=None, alias="maskRequestHost")
    https_ports: list[int] = pydantic.Field(default=[], alias="httpsPorts", max_length=16)


class NetworkUpdate(Egress):
    """What may leave from now on."""

    allow_internet_access: bool | None = None


class NewSandbox(Body):
    """A new sandbox. `timeout` in seconds; None is what the version of the API means by leaving it out."""

    template: str = pydantic.Field(alias="templateID", min_length=1)
    timeout: int | None = pydantic.Field(default=None, ge=0, le=MAX_TIMEOUT_S)
    auto_pause: bool = pydantic.Field(default=False, alias="autoPause")
    auto_pause_memory: bool = pydantic.Field(default=True, alias="autoPauseMemory")
    auto_resume: AutoResume = pydantic.Field(default_factory=AutoResume, alias="autoResume")
    allow_internet_access: bool | None = None
    network: Network | None = None
    metadata: dict[str, str] = pydantic.Field(default={})
    env: dict[str, str] = pydantic.Field(default={}, alias="envVars")
    iam: dict[str, object] = pydantic.Field(default={})
    volume_mounts: list[VolumeMount] = pydantic.Field(default=[], alias="volumeMounts")


class Connect(Body):
    """How long a sandbox is to run at least, in seconds. `memory` False boots a paused one from its disk."""

    timeout: int = pydantic.Field(default=300, ge=0, le=MAX_TIMEOUT_S)
    memory: bool = True


class Resume(Body):
    """How long a resumed sandbox runs, in seconds, and whether its timeout pauses it from now on."""

    timeout: int = pydantic.Field(default=15, ge=0, le=MAX_TIMEOUT_S)
    auto_pause: bool | None = pydantic.Field(default=None, alias="autoPause")
    memory: bool = True


class Pause(Body):
    """How to pause. `memory` False keeps the disk only."""

    memory: bool = True


class Timeout(Body):
    """Seconds from now; 0 is now."""

    timeout: int = pydantic.Field(ge=0, le=MAX_TIMEOUT_S)


class Refresh(Body):
    """Seconds from now that a sandbox has at least."""

    duration: int = pydantic.Field(default=15, ge=0, le=3600)


class Fork(Body):
    """Copies to make, and their timeout in seconds."""

    timeout: int = pydantic.Field(default=15, ge=0, le=MAX_TIMEOUT_S)
    count: int = pydantic.Field(default=1, ge=1, le=MAX_FORKS)


class Snapshot(Body):
    """A snapshot to take."""

    name: str | None = None
    memory: bool = True
