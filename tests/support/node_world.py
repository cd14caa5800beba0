"""A host's network path for tests: gateway process, both proxies, slots, and guests that are namespaces instead of VMs.

A guest is plugged in like a VMM: the slot's tap is opened with `open_tap` and its frames are carried to a tap in the
guest's namespace. So every packet passes the slot's real rules.
"""

import asyncio
import contextlib
import dataclasses
import os
import secrets
import selectors
import socket
import string
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import httpx2
from fastapi import FastAPI

from space.host import command, daemon, files, netns
from space.host.daemon import User
from space.host.process import Watched
from space.layout import RUN_ROOT, UID_RANGE_FIRST, UID_RANGE_SIZE, Layout
from space.model.ids import SandboxId, new_id
from space.net import gateway_ns, nft, slot, uplink
from space.net.slot import Slot
from space.proxy import edge, egress, envoy, ingress
from space.settings import GatewaySettings, RedactorSettings, dump_process_settings
from space.wire import serving
from space.wire.gateway import (
    AGENT_INTERNAL_PORT,
    AGENT_ORDERS_PORT,
    AGENT_PORT,
    EGRESS_HTTP_PORT,
    GatewayClient,
    SlotEntry,
)

DEADLINE_S = 30
GUEST_SERVER = Path(__file__).parent / "guest_server.py"
PREVIEW_PORT = 8000


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds; TimeoutError after DEADLINE_S."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def instance() -> Generator[Layout]:
    """An instance of the test's own, with its run folders as the supervisor makes them."""
    name = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(4))
    uid_base = UID_RANGE_FIRST + UID_RANGE_SIZE * (200 + secrets.randbelow(1000))
    with tempfile.TemporaryDirectory() as data:
        Path(data).chmod(0o711)
        layout = Layout(Path(data), name, uid_base)
        (layout.data_dir / "worker").mkdir()
        files.make_dir(RUN_ROOT, mode=0o711)
        files.make_dir(layout.run_dir, mode=0o711)
        files.make_dir(layout.api_sock.parent, mode=0o2710, uid=layout.api_uid, gid=layout.edge_api_gid)
        files.make_dir(layout.authz_sock.parent, mode=0o2710, uid=layout.gateway_uid, gid=layout.ingress_gateway_gid)
        files.make_dir(layout.egress_sock.parent, mode=0o2710, uid=layout.gateway_uid, gid=layout.egress_gateway_gid)
        files.make_dir(layout.needles_sock.parent, mode=0o2710, uid=layout.gateway_uid, gid=layout.redactor_gateway_gid)
        files.make_dir(
            layout.redactor_sock.parent, mode=0o2710, uid=layout.redactor_uid, gid=layout.egress_redactor_gid
        )
        files.make_dir(layout.ingress_sock.parent, mode=0o2710, uid=layout.ingress_uid, gid=layout.edge_ingress_gid)
        files.make_dir(layout.gateway_control_sock.parent, mode=0o700, uid=layout.gateway_uid, gid=layout.gateway_uid)
        try:
            yield layout
        finally:
            _remove_tree(layout.run_dir)


def _remove_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    folder.rmdir()


def _pump(first: int, second: int, stop: int) -> None:
    """Carry frames between two taps until `stop` can be read."""
    with selectors.DefaultSelector() as selector:
        selector.register(first, selectors.EVENT_READ, second)
        selector.register(second, selectors.EVENT_READ, first)
        selector.register(stop, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == stop:
                    return
                with contextlib.suppress(OSError):  # a tap that is down
                    os.write(key.data, os.read(key.fd, 70000))


@dataclasses.dataclass
class Guest:
    """A stand-in for a VM."""

    slot: Slot
    sandbox: SandboxId
    netns: str

    async def python(self, source: str) -> str:
        """Run a Python program in the guest's namespace and return what it printed."""
        done = await command.run("/usr/bin/python3", "-c", source, netns=netns.path(self.netns), timeout_s=DEADLINE_S)
        return done.stdout.strip()

    async def dial(self, address: str, port: int) -> str:
        """Open a TCP connection from the guest; return `open`, or the name of the error."""
        return await self.python(
            f"import socket\ns = socket.socket(); s.settimeout(2)\n"
            f"try: s.connect(({address!r}, {port})); print('open')\n"
            f"except OSError as e: print(type(e).__name__)"
        )


@contextlib.asynccontextmanager
async def guest(layout: Layout, made: Slot) -> AsyncGenerator[Guest]:
    """Plug a guest with its server into a slot. The slot itself stays the caller's."""
    name = f"{layout.netns_prefix}test{made.number}"
    async with contextlib.AsyncExitStack() as stack:
        await command.run("ip", "netns", "add", name)
        stack.push_async_callback(netns.delete, name)
        await command.run(
            "ip", "-n", name, "-batch", "-",
            stdin=(
                f"tuntap add dev tap0 mode tap vnet_hdr\naddress add {nft.GUEST}/30 dev tap0\nlink set tap0 up\n"
                f"link set lo up\nroute add default via {nft.TAP}\n"
            ).encode(),
        )  # fmt: skip
        ours = slot.open_tap(made)
        stack.callback(os.close, ours)
        theirs = slot.open_tap(dataclasses.replace(made, netns=name))
        stack.callback(os.close, theirs)
        stop_read, stop_write = os.pipe()
        stack.callback(os.close, stop_read)
        thread = threading.Thread(target=_pump, args=(ours, theirs, stop_read), name=f"pump {name}")
        thread.start()
        stack.callback(thread.join)
        stack.callback(os.close, stop_write)
        ports = (str(AGENT_PORT), str(AGENT_INTERNAL_PORT), str(AGENT_ORDERS_PORT), str(PREVIEW_PORT))
        server = daemon.spawn(
            ("/usr/bin/python3", str(GUEST_SERVER), name, *ports), log=None, netns=netns.path(name)
        )  # fmt: skip
        stack.push_async_callback(server.stop, 3)
        await _listening(netns.path(name), nft.GUEST, AGENT_PORT)
        yield Guest(made, SandboxId(new_id()), name)


async def _listening(namespace: Path, address: str, port: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with netns.tcp_socket(namespace) as probe, contextlib.suppress(OSError):
                await asyncio.get_running_loop().sock_connect(probe, (address, port))
                return
            await asyncio.sleep(0.02)


def connects(path: Path) -> bool:
    """Tell whether somebody listens at a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(str(path))
        return True
    return False


@contextlib.asynccontextmanager
async def gateway(layout: Layout, **settings: object) -> AsyncGenerator[Watched]:
    """The gateway process under its own uid, in the gateway namespace, which must be there."""
    ours = {"data_dir": layout.data_dir, "instance": layout.instance, "uid_base": layout.uid_base}
    wish = GatewaySettings.model_validate(ours | settings)
    file = layout.data_dir / "gateway.json"
    files.write_atomic(file, dump_process_settings(wish), owner=layout.gateway_uid)
    process = daemon.spawn(
        (sys.executable, "-m", "space.gateway", "--settings", str(file)),
        log=layout.data_dir / "gateway.log",
        user=User(layout.gateway_uid, layout.gateway_uid),
        netns=netns.path(layout.gateway_netns),
    )
    sockets = (layout.authz_sock, layout.decisions_sock, layout.egress_sock, layout.gateway_control_sock)
    try:
        await eventually(lambda: all(connects(path) for path in sockets))
        yield process
    finally:
        await process.stop(3)


@contextlib.asynccontextmanager
async def redactor(layout: Layout) -> AsyncGenerator[Watched]:
    """The redactor under its own uid; it needs a gateway when it has something to do."""
    uid = layout.redactor_uid
    wish = RedactorSettings(data_dir=layout.data_dir, instance=layout.instance, uid_base=layout.uid_base)
    file = layout.data_dir / "redactor.json"
    files.write_atomic(file, dump_process_settings(wish), owner=uid)
    argv = (sys.executable, "-m", "space.redactor", "--settings", str(file))
    user = User(uid, uid, (layout.redactor_gateway_gid,))
    process = daemon.spawn(
        argv, log=layout.data_dir / "redactor.log", user=user, netns=netns.path(layout.gateway_netns)
    )
    try:
        await eventually(lambda: connects(layout.redactor_sock))
        yield process
    finally:
        await process.stop(3)


@contextlib.asynccontextmanager
async def proxy(layout: Layout, name: str, config: str, user: User, namespace: Path | None) -> AsyncGenerator[Watched]:
    """One Envoy, with its configuration and log in files of its uid. The caller waits for its listener."""
    config_file, log_file = layout.data_dir / f"{name}.yaml", layout.data_dir / f"{name}.log"
    files.write_atomic(config_file, config, owner=user.uid)
    files.write_atomic(log_file, "", owner=user.uid)
    process = daemon.spawn(envoy.argv(config_file, log_file), log=None, user=user, netns=namespace)
    try:
        yield process
    finally:
        await process.stop(3)


@contextlib.asynccontextmanager
async def ingress_proxy(layout: Layout) -> AsyncGenerator[Watched]:
    """The ingress proxy in the gateway namespace."""
    namespace = netns.path(layout.gateway_netns)
    async with proxy(layout, "ingress", ingress.config(layout), ingress.user(layout), namespace) as process:
        await eventually(lambda: connects(layout.ingress_sock))
        yield process


@contextlib.asynccontextmanager
async def egress_proxy(layout: Layout, roots: Path) -> AsyncGenerator[Watched]:
    """The egress proxy in the gateway namespace; `roots` verifies the servers outside."""
    namespace = netns.path(layout.gateway_netns)
    config = egress.config(layout, roots)
    async with proxy(layout, "egress", config, egress.user(layout), namespace) as process:
        await eventually(lambda: netns.tcp_listens(namespace, EGRESS_HTTP_PORT))
        yield process


def free_port() -> int:
    """Return a TCP port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def edge_proxy(layout: Layout, secret: Path | None = None) -> AsyncGenerator[httpx2.AsyncClient]:
    """The edge, and a client of it in clear text; `secret` as in edge.config."""
    port = free_port()
    config = edge.config(layout, "127.0.0.1", port, secret)
    async with (
        proxy(layout, "edge", config, edge.user(layout), None),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S, trust_env=False) as client,
    ):

        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        await eventually(answers)
        yield client


@contextlib.asynccontextmanager
async def api(layout: Layout, application: FastAPI) -> AsyncGenerator[None]:
    """An application on the api's socket, where the edge asks."""
    with serving.bind_unix(layout.api_sock, mode=0o660) as listener:
        os.chown(layout.api_sock, layout.api_uid, -1)
        server = serving.server(application, grace_s=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]))
            try:
                yield
            finally:
                server.should_exit = True


@contextlib.asynccontextmanager
async def slots(
    layout: Layout,
    count: int,
    way_out: str = uplink.NONE,
    resolvers: Sequence[IPv4Address] = (),
    exceptions: Sequence[IPv4Network] = (),
) -> AsyncGenerator[list[Slot]]:
    """The gateway namespace and some slots; without an uplink, unless one is named."""
    await gateway_ns.ensure(layout, way_out, resolvers, exceptions)
    try:
        yield [await slot.make(layout, number) for number in range(1, count + 1)]
    finally:
        for number in slot.existing(layout):
            await slot.destroy(layout, number)
        await gateway_ns.remove(layout)


def node_client(layout: Layout) -> httpx2.AsyncClient:
    """Return a client of the ingress proxy's socket, as the edge and the worker are."""
    transport = httpx2.AsyncHTTPTransport(uds=str(layout.ingress_sock))
    return httpx2.AsyncClient(transport=transport, base_url="http://node", timeout=DEADLINE_S)


async def admit(layout: Layout, addresses: Mapping[SandboxId, str]) -> None:
    """Tell the gateway all slots, as the worker does."""
    client = GatewayClient(layout.gateway_control_sock)
    try:
        entries = {name: SlotEntry.model_validate({"address": address}) for name, address in addresses.items()}
        await client.put_slots(entries)
    finally:
        await client.close()
