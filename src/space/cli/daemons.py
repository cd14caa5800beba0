"""The server processes of one host: what each is started with, as whom, and when it counts as ready."""

import dataclasses
import os
import signal
import sys
from asyncio import open_unix_connection
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address
from pathlib import Path

import httpx2
from pydantic import SecretStr

from space.cli import code, folders, roots, tls
from space.cli.supervisor import DaemonSpec
from space.disk import area
from space.host import netns, resolv
from space.host.daemon import User
from space.layout import Layout
from space.proxy import edge, egress, envoy, ingress
from space.settings import ApiSettings, GatewaySettings, HostSettings, RedactorSettings, WorkerSettings
from space.store import db, embedded
from space.wire.gateway import EGRESS_HTTP_PORT
from space.wire.worker_client import WorkerClient

_WORKER_START_S = 900
"""The first start downloads a kernel, builds the guest's agent and finds out what KVM can do."""
_WORKER_DOING = {
    "build_step_began step=kernel": "fetching the guests' kernel from Debian (once)",
    "build_step_began step=agent": "compiling the guest agent (once)",
    "build_step_began step=initramfs": "booting a tiny guest, to find out what can run guests here",
}
_MODULES = {"api": "space.apiserver"}
"""The module of a process where it is not named like it."""
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 1024**2


def worker_settings(layout: Layout, settings: HostSettings) -> WorkerSettings:
    """Return the worker's settings; without a wish it admits half of this host's RAM, or what its disk can back."""
    default_mib = min(int(os.sysconf("SC_PHYS_PAGES") * _PAGE_MIB / 2), area.default_memory_mib(layout.data_dir))
    return WorkerSettings(
        data_dir=layout.data_dir,
        instance=layout.instance,
        uid_base=layout.uid_base,
        log_level=settings.log_level,
        memory_mib=default_mib if settings.memory_gib is None else settings.memory_gib * 1024,
        disk_gib=settings.disk_gib,
        slot_pool=settings.slot_pool,
        warm_pool=settings.warm_pool,
        driver=settings.driver,
        uplink=settings.uplink,
        resolvers=resolvers(settings),
        never_except=settings.never_except,
        registries=settings.registries,
        code_dir=code.code_dir(layout),
    )


def resolvers(settings: HostSettings) -> tuple[IPv4Address, ...]:
    """Return the name servers that the gateway asks: those that were set, or those of where its uplink leads."""
    if settings.resolvers is not None:
        return settings.resolvers
    return resolv.name_servers(None if settings.uplink == "host" else settings.uplink)


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of a module of ours; see `environment`. `-P`: nothing is imported from the folder `/`."""
    return (sys.executable, "-P", "-m", module, *arguments)


def environment(layout: Layout) -> dict[str, str]:
    """Return the environment of our Python processes: where the code is, and nothing that is secret."""
    return {"PYTHONPATH": str(code.source_dir(layout)), "PYTHONDONTWRITEBYTECODE": "1"}


def postgres(layout: Layout) -> DaemonSpec:
    """Return the embedded database; `embedded.prepare` must have run once."""
    return DaemonSpec(
        name="postgres",
        argv=embedded.argv(layout),
        log_file=layout.log_dir / "postgres.log",
        output=layout.log_dir / "postgres.log",
        user=embedded.user(),
        prepare=lambda: embedded.prepare(layout),
        ready=lambda: _database_answers(embedded.dsn(layout)),
        start_timeout_s=60,
        stop_signal=signal.SIGINT,  # "fast": SIGTERM would wait for its clients
        stop_grace_s=10,
    )


def worker(layout: Layout, settings: HostSettings) -> DaemonSpec:
    """Return the worker. Root: it makes namespaces, mounts and processes of other users; bounded by its one socket."""
    file = folders.write_settings(layout, "worker", worker_settings(layout, settings), 0)
    spec = _python(layout, "worker", file, None, lambda: _worker_answers(layout.worker_sock), _WORKER_START_S, 8)
    return dataclasses.replace(spec, doing=_WORKER_DOING)


def gateway(layout: Layout, settings: HostSettings) -> DaemonSpec:
    """Return the gateway, inside the gateway namespace that the worker has made."""
    uid = layout.gateway_uid
    wish = GatewaySettings(
        data_dir=layout.data_dir,
        instance=layout.instance,
        uid_base=layout.uid_base,
        log_level=settings.log_level,
        resolvers=resolvers(settings),
        never_except=settings.never_except,
        roots=roots.write_bundle(layout, settings.upstream_ca),
    )
    file = folders.write_settings(layout, "gateway", wish, uid)
    user = User(uid, uid, (layout.ingress_gateway_gid, layout.egress_gateway_gid))
    sockets = (layout.authz_sock, layout.decisions_sock, layout.egress_sock, layout.gateway_control_sock)
    spec = _python(layout, "gateway", file, user, lambda: _accept(*sockets))
    return dataclasses.replace(spec, netns=netns.path(layout.gateway_netns))


def api(layout: Layout, settings: HostSettings, database: SecretStr, secret_keys: tuple[SecretStr, ...]) -> DaemonSpec:
    """Return the api."""
    wish = ApiSettings(
        data_dir=layout.data_dir,
        instance=layout.instance,
        uid_base=layout.uid_base,
        log_level=settings.log_level,
        database_url=database,
        domain=settings.domain,
        secret_keys=secret_keys,
        images=settings.images,
    )
    file = folders.write_settings(layout, "api", wish, layout.api_uid)
    return _python(layout, "api", file, api_user(layout), lambda: _accept(layout.api_sock))


def api_user(layout: Layout) -> User:
    """Return who the api runs as; its groups let it own its socket and dial the worker's."""
    return User(layout.api_uid, layout.api_uid, (layout.edge_api_gid, layout.api_worker_gid))


def ingress_proxy(layout: Layout) -> DaemonSpec:
    """Return the ingress proxy, inside the gateway namespace that the worker has made."""
    file = folders.write_config(layout, "ingress.yaml", ingress.config(layout), layout.ingress_uid)
    place = netns.path(layout.gateway_netns)
    return _envoy(layout, "ingress", file, ingress.user(layout), lambda: _accept(layout.ingress_sock), place)


def redactor(layout: Layout, settings: HostSettings) -> DaemonSpec:
    """Return the redactor, in the gateway namespace, where packet rules let its uid reach nothing."""
    uid = layout.redactor_uid
    wish = RedactorSettings(
        data_dir=layout.data_dir, instance=layout.instance, uid_base=layout.uid_base, log_level=settings.log_level
    )
    file = folders.write_settings(layout, "redactor", wish, uid)
    user = User(uid, uid, (layout.egress_redactor_gid, layout.redactor_gateway_gid))
    spec = _python(layout, "redactor", file, user, lambda: _accept(layout.redactor_sock))
    return dataclasses.replace(spec, netns=netns.path(layout.gateway_netns))


def egress_proxy(layout: Layout, settings: HostSettings) -> DaemonSpec:
    """Return the egress proxy, inside the gateway namespace that the worker has made."""
    config = egress.config(layout, roots.write_bundle(layout, settings.upstream_ca))
    file = folders.write_config(layout, "egress.yaml", config, layout.egress_uid)
    place = netns.path(layout.gateway_netns)

    async def ready() -> bool:
        return netns.tcp_listens(place, EGRESS_HTTP_PORT)

    return _envoy(layout, "egress", file, egress.user(layout), ready, place)


def edge_proxy(layout: Layout, settings: HostSettings, port: int) -> DaemonSpec:
    """Return the edge; ready when the api says through it that everything is."""
    secret = None if settings.tls_cert is None else tls.secret_file(layout)
    config = edge.config(layout, settings.host, port, secret)
    file = folders.write_config(layout, "edge.yaml", config, layout.edge_uid)
    address = url(settings.host, port)
    return _envoy(layout, "edge", file, edge.user(layout), lambda: _ready_through_edge(address), None)


def url(host: str, port: int) -> str:
    """Return the address at which a client on this host reaches the edge: in clear, certificate or not."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}"


def _python(
    layout: Layout,
    name: str,
    settings_file: Path,
    user: User | None,
    ready: Callable[[], Awaitable[bool]],
    start_timeout_s: float = 30,
    stop_grace_s: float = 5,
) -> DaemonSpec:
    log_file = layout.log_dir / f"{name}.log"
    return DaemonSpec(
        name=name,
        argv=python(_MODULES.get(name, f"space.{name}"), "--settings", str(settings_file)),
        log_file=log_file,
        output=log_file,
        user=user,
        env=environment(layout),
        ready=ready,
        start_timeout_s=start_timeout_s,
        stop_grace_s=stop_grace_s,
    )


def _envoy(
    layout: Layout,
    name: str,
    config_file: Path,
    user: User,
    ready: Callable[[], Awaitable[bool]],
    place: Path | None,
) -> DaemonSpec:
    log_file = layout.log_dir / f"{name}.log"

    async def prepare() -> None:
        folders.make_log_file(log_file, user.uid)

    return DaemonSpec(
        name=name,
        argv=envoy.argv(config_file, log_file),
        log_file=log_file,
        output=None,  # a crash prints headers, tokens included
        user=user,
        netns=place,
        prepare=prepare,
        ready=ready,
        stop_grace_s=2,
    )


async def _accept(*sockets: Path) -> bool:
    """Tell that something accepts connections on all of them; raises OSError where not."""
    for path in sockets:
        _, writer = await open_unix_connection(path)
        writer.close()
    return True


async def _worker_answers(socket: Path) -> bool:
    client = WorkerClient(socket)
    try:
        await client.info()
    finally:
        await client.close()
    return True


async def _database_answers(dsn: SecretStr) -> bool:
    async with db.connected(dsn, connections=1) as database:
        await database.execute("SELECT 1")
    return True


async def _ready_through_edge(address: str) -> bool:
    async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=5) as http:
        try:
            return (await http.get("/readyz")).is_success
        except httpx2.TransportError:
            return False
