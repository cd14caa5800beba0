"""TLS at the edge: a real Envoy, with a certificate of an authority of the test's own that changes under it."""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncGenerator

import pytest
from fastapi import FastAPI, Request
from tests.support import node_world
from tests.support.authority import Authority

from space.cli import tls
from space.host import command, netns
from space.layout import Layout
from space.proxy import edge
from space.settings import HostSettings, host_settings

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")

AUTHORITY = Authority()
HERE, THERE, PORT = "192.0.2.201", "192.0.2.202", 8443
"""Addresses of the two namespaces: the edge's, and a client's elsewhere."""


@dataclasses.dataclass
class World:
    """An edge with a certificate, in a namespace that a client in another one reaches."""

    layout: Layout
    settings: HostSettings
    names: tuple[str, str]

    def write(self, *names: str) -> None:
        """Put a new certificate for these names where the operator keeps it."""
        assert self.settings.tls_cert is not None
        assert self.settings.tls_key is not None
        chain, key = AUTHORITY.issue(names)
        self.settings.tls_cert.write_text(chain)
        self.settings.tls_key.write_text(key)

    async def ask(
        self, scheme: str, *, elsewhere: bool = True, alpn: str = "http/1.1", name: str = "a.boxes.test"
    ) -> str:
        """Ask for a page and return what came; the name of an exception where nothing did."""
        source = (
            "import socket, ssl, sys\n"
            f"try:\n s = socket.create_connection(({HERE!r}, {PORT}), 10)\n"
            f" if {scheme!r} == 'https':\n"
            f"  c = ssl.create_default_context(cadata=sys.stdin.read()); c.set_alpn_protocols([{alpn!r}])\n"
            f"  s = c.wrap_socket(s, server_hostname={name!r}); print(s.selected_alpn_protocol())\n"
            f" s.sendall(b'GET /v1/x HTTP/1.1\\r\\nHost: {name}\\r\\nConnection: close\\r\\n\\r\\n')\n"
            " said = b''\n"
            " while piece := s.recv(65536): said += piece\n"
            " print(said.decode('latin-1'))\n"
            "except OSError as error: print(type(error).__name__)\n"
        )
        done = await command.run(
            "/usr/bin/python3", "-c", source, stdin=AUTHORITY.pem.encode(), netns=netns.path(self.names[elsewhere]),
            timeout_s=30,
        )  # fmt: skip
        return done.stdout


def _api() -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.get("/{path:path}")
    async def anything(request: Request) -> dict[str, str]:
        return {"proto": request.headers["x-forwarded-proto"], "host": request.headers["host"]}

    return app


@contextlib.asynccontextmanager
async def _namespaces(layout: Layout) -> AsyncGenerator[tuple[str, str]]:
    here, there = (f"{layout.netns_prefix}{name}" for name in ("here", "there"))
    try:
        for name in (here, there):
            await command.run("ip", "netns", "add", name)
        await command.run("ip", "-n", here, "link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", there)
        for name, address in ((here, HERE), (there, THERE)):
            lines = f"address add {address}/24 dev v0\nlink set lo up\nlink set v0 up\n"
            await command.run("ip", "-n", name, "-batch", "-", stdin=lines.encode())
        yield here, there
    finally:
        for name in (here, there):
            await netns.delete(name)


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[World]:
    """All of it, once."""
    folder = tmp_path_factory.mktemp("operator")
    settings = host_settings(tls_cert=folder / "cert.pem", tls_key=folder / "key.pem")
    with node_world.instance() as layout:
        async with _namespaces(layout) as names:
            found = World(layout, settings, names)
            found.write("*.boxes.test")
            certificate = tls.read(settings)
            assert certificate is not None
            config = edge.config(layout, HERE, PORT, tls.publish(layout, certificate))
            place = netns.path(names[0])
            async with (
                node_world.api(layout, _api()),
                node_world.proxy(layout, "edge", config, edge.user(layout), place),
            ):
                await node_world.eventually(lambda: netns.tcp_listens(place, PORT))
                yield found


async def test_clients_elsewhere_speak_tls_and_nothing_else(world: World) -> None:
    said = await world.ask("https")
    assert said.startswith("http/1.1\nHTTP/1.1 200 ")
    assert '{"proto":"https","host":"a.boxes.test"}' in said
    assert "HTTP/1.1" not in await world.ask("http")


async def test_this_host_may_speak_without(world: World) -> None:
    said = await world.ask("http", elsewhere=False)
    assert said.startswith("HTTP/1.1 200 ")
    assert '"proto":"http"' in said
    assert "HTTP/1.1 200 " in await world.ask("https", elsewhere=False)


async def test_http2_is_offered(world: World) -> None:
    assert (await world.ask("https", alpn="h2")).startswith("h2\n")


async def test_a_new_certificate_is_taken_while_it_runs(world: World) -> None:
    told: list[str] = []
    async with asyncio.TaskGroup() as group:
        following = group.create_task(tls.follow(world.layout, world.settings, told.append))
        assert "SSLCertVerificationError" in await world.ask("https", name="a.other.test")
        world.write("*.other.test", "*.boxes.test")
        async with asyncio.timeout(60):
            while "HTTP/1.1 200 " not in await world.ask("https", name="a.other.test"):
                await asyncio.sleep(0.2)
        assert told[-1].startswith("the edge has a new certificate, good until ")
        assert world.settings.tls_key is not None
        world.settings.tls_key.write_text("junk")
        async with asyncio.timeout(60):
            while "keeps" not in told[-1]:
                await asyncio.sleep(0.2)
        assert "holds no private key" in told[-1]
        assert "HTTP/1.1 200 " in await world.ask("https", name="a.other.test")
        following.cancel()


async def test_the_key_is_for_the_edge_alone(world: World) -> None:
    file = tls.secret_file(world.layout)
    stat, folder = file.stat(), file.parent.stat()
    assert (stat.st_mode & 0o777, stat.st_uid) == (0o400, world.layout.edge_uid)
    assert (folder.st_mode & 0o7777, folder.st_uid, folder.st_gid) == (0o750, 0, world.layout.edge_uid)
