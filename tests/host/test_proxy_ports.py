"""Requests for ports of a sandbox, all the way: edge, ingress proxy, gateway, slot, guest; real Envoys, real rules.

The api is a stand-in that answers the edge's question as a test tells it to; what it should answer is
tests/service/test_edge_visits.py's.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import Response
from tests.support import node_world
from tests.support.authority import Authority
from tests.support.node_world import PREVIEW_PORT, Guest

from space.host import command, netns
from space.layout import Layout
from space.model.ids import new_id
from space.net import nft, slot
from space.wire.gateway import AGENT_INTERNAL_PORT, AGENT_ORDERS_PORT, AGENT_PORT

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")

DOMAIN = "sandboxes.test"


@dataclasses.dataclass
class World:
    """Everything running: two guests, and a client of the edge. `verdict` is what the api says next."""

    layout: Layout
    one: Guest
    two: Guest
    edge: httpx2.AsyncClient
    verdict: dict[str, str] | Response = dataclasses.field(default_factory=dict)
    asked: list[Request] = dataclasses.field(default_factory=list)

    def port(self, port: int = PREVIEW_PORT, origin: str = "own", **more: str) -> None:
        """Let the api say that requests are for a port of the first guest."""
        self.verdict = {
            "x-space-to": "node", "x-space-sandbox": self.one.sandbox, "x-space-port": str(port),
            "x-space-origin": origin, **{f"x-{name.replace('_', '-')}": value for name, value in more.items()},
        }  # fmt: skip

    def name(self, port: int = PREVIEW_PORT) -> str:
        """Return the name of a port of the first guest."""
        return f"{port}-{self.one.sandbox}.{DOMAIN}"


def _api(world: World) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.api_route("/internal/authz/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
    async def authz(request: Request, path: str) -> Response:
        world.asked.append(request)
        return world.verdict if isinstance(world.verdict, Response) else Response(headers=world.verdict)

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def anything(path: str) -> dict[str, str]:
        return {"api": path}

    return app


@pytest.fixture(scope="module")
async def everything() -> AsyncGenerator[World]:
    """All of it, once."""
    with node_world.instance() as layout:
        async with (
            node_world.slots(layout, 2) as (first, second),
            node_world.guest(layout, first) as one,
            node_world.guest(layout, second) as two,
            node_world.gateway(layout),
            node_world.ingress_proxy(layout),
            node_world.edge_proxy(layout) as edge,
        ):
            await node_world.admit(layout, {one.sandbox: first.address, two.sandbox: second.address})
            world = World(layout, one, two, edge)
            async with node_world.api(layout, _api(world)):
                yield world


@pytest.fixture
def world(everything: World) -> World:
    """The same, with an api that says nothing yet."""
    everything.verdict = {}
    everything.asked.clear()
    return everything


async def _seen(world: World, path: str = "/", **headers: str) -> dict[str, str]:
    """Return the headers that the first guest saw of a request to its port's name."""
    response = await world.edge.get(path, headers={"host": world.name(), **headers})
    assert response.status_code == 200, response.text
    seen = response.json()
    assert seen["guest"] == world.one.netns
    headers_seen = dict(seen["headers"])
    assert len(headers_seen) == len(seen["headers"])
    return headers_seen


def _e2b(response: httpx2.Response) -> dict[str, object]:
    assert response.headers["content-type"] == "application/json; charset=utf-8", response.text
    body: dict[str, object] = response.json()
    assert body["code"] == response.status_code
    return body


async def test_a_users_server_sees_the_clients_request_and_nothing_of_ours(world: World) -> None:
    world.port()
    mine = {"cookie": "c=1", "authorization": "Bearer mine", "x-api-key": "mine", "x-access-token": "mine",
            "x-request-id": "7", "x-http-method-override": "PUT", "accept": "a/b"}  # fmt: skip
    seen = await _seen(world, **mine, **{"e2b-traffic-access-token": "t", "x-forwarded-for": "1.2.3.4"})
    assert {name: seen.pop(name) for name in mine} == mine
    assert seen.pop("host") == world.name()
    assert seen.pop("x-forwarded-proto") == "http"
    assert set(seen) == {"accept-encoding", "user-agent"}


async def test_what_the_api_takes_out_does_not_arrive(world: World) -> None:
    world.port(envoy_auth_headers_to_remove="x-api-key,cookie,authorization")
    seen = await _seen(world, cookie="c=1", authorization="Bearer x", **{"x-api-key": "k", "x-access-token": "t"})
    assert not {"cookie", "authorization", "x-api-key"} & set(seen)
    assert seen["x-access-token"] == "t"


async def test_the_host_that_a_guest_sees_is_the_apis_to_say(world: World) -> None:
    world.port(space_host=f"localhost:{PREVIEW_PORT}")
    seen = await _seen(world)
    assert (seen["host"], seen["x-forwarded-host"]) == (f"localhost:{PREVIEW_PORT}", world.name())
    world.port(origin="shared", space_host="sandbox.example")
    response = await world.edge.get("/", headers={"e2b-sandbox-id": world.one.sandbox})
    seen = dict(response.json()["headers"])
    assert seen["host"] == "sandbox.example"
    assert "x-forwarded-host" not in seen, "that would be our own address"


@pytest.mark.parametrize("named", ["host", "e2b-sandbox-id"])
async def test_paths_arrive_as_they_were_sent(world: World, named: str) -> None:
    world.port()
    headers = {named: world.name() if named == "host" else world.one.sandbox}
    for path in ("/a%2Fb?c=%2e%2e", "/v1/sandboxes", "/internal/authz/x", "/healthz", "/files?signature=x"):
        seen = (await world.edge.get(str(world.edge.base_url).rstrip("/") + path, headers=headers)).json()
        assert seen.get("path") == path, path


async def test_only_what_could_be_a_sandboxs_is_asked_about(world: World) -> None:
    for path, headers in (("/", {}), ("/files", {}), ("/", {"host": "api.sandboxes.test"}), ("/", {"host": "1-x"})):
        assert "api" in (await world.edge.get(path, headers=headers)).json()
    assert not world.asked
    world.verdict = {"x-space-to": "api"}
    for path, headers in (
        ("/", {"host": "8080-x.y"}), ("/", {"host": f"1-{'A' * 20}.z:1"}), ("/", {"e2b-sandbox-id": "x"}),
        ("/files?signature=v1_x", {}),
    ):  # fmt: skip
        assert "api" in (await world.edge.get(path, headers=headers)).json()
    assert len(world.asked) == 4
    assert world.asked[-1].url.query == "signature=v1_x"


async def test_a_browser_may_send_the_headers_that_name_a_sandbox(world: World) -> None:
    asked = {"origin": "https://app.test", "access-control-request-method": "POST"}
    wanted = "Content-Type,E2b-Sandbox-Id,x-access-token"
    answer = await world.edge.options(
        "/process.Process/Start", headers=asked | {"access-control-request-headers": wanted}
    )
    assert (answer.status_code, answer.content) == (204, b"")
    assert {name: text for name, text in answer.headers.items() if name.startswith("access-")} == {
        "access-control-allow-origin": "*", "access-control-allow-methods": "POST",
        "access-control-allow-headers": wanted, "access-control-max-age": "7200",
    }  # fmt: skip
    assert not world.asked
    world.port()
    await world.edge.options("/", headers=asked | {"access-control-request-headers": wanted, "host": world.name()})
    assert world.asked, "a port's own name is its server's to answer for"


async def test_what_the_api_needs_to_decide_reaches_it(world: World) -> None:
    world.port()
    headers = {"x-access-token": "a", "e2b-sandbox-port": "8", "e2b-traffic-access-token": "t", "accept": "text/html"}
    await world.edge.get("/x?y", headers={"host": world.name(), "x-forwarded-for": "1.2.3.4", **headers})
    (asked,) = world.asked
    assert {name: asked.headers[name] for name in headers} == headers
    assert asked.headers["host"] == world.name()
    assert asked.headers["x-forwarded-for"] not in ("", "1.2.3.4")
    assert asked.scope["raw_path"] == b"/internal/authz/x"


async def test_no_header_of_a_client_decides(world: World) -> None:
    forged = {
        "x-space-to": "node", "x-space-sandbox": world.two.sandbox, "x-space-port": str(AGENT_INTERNAL_PORT),
        "x-space-host": "evil", "x-space-origin": "own", "x-envoy-original-dst-host": f"{world.two.slot.address}:80",
        "x-envoy-auth-headers-to-remove": "host",
    }  # fmt: skip
    world.port()
    seen = await _seen(world, **forged)
    assert seen["host"] == world.name()
    assert not set(seen) & set(forged)
    assert "api" in (await world.edge.get("/", headers=forged)).json(), "a request for the api stays one"
    world.verdict = {"x-space-to": "api"}
    assert "api" in (await world.edge.get("/", headers={"host": world.name(), **forged})).json()
    world.verdict = {}
    response = await world.edge.get("/", headers={"host": world.name(), **forged})
    assert response.status_code == 503, "an answer that does not say where to leads nowhere"


async def test_cookies_of_a_port_are_its_names_alone(world: World) -> None:
    world.port()
    said = (
        b"HTTP/1.1 200 OK\r\nset-cookie: a=1; Domain=sandboxes.test; Path=/\r\n"
        b"set-cookie: b=2; path=/; dOmAiN = .test\r\nset-cookie: domain=3; Secure\r\nlocation: /x\r\n"
        b"clear-site-data: *\r\nx-accel-redirect: /etc\r\naccess-control-allow-origin: *\r\n"
        b"content-security-policy: x\r\ncontent-length: 0\r\n\r\n"
    )
    response = await world.edge.get("/v1/files/stat?" + said.hex(), headers={"host": world.name()})
    assert response.headers.get_list("set-cookie") == ["a=1; Path=/", "b=2; path=/", "domain=3; Secure"]
    assert set(response.headers) == {
        "set-cookie", "location", "access-control-allow-origin", "content-security-policy", "content-length", "date",
    }  # fmt: skip
    for origin, kept in (("shared", {"location"}), ("strict", {"x-content-type-options"})):
        world.port(origin=origin)
        response = await world.edge.get("/v1/files/stat?" + said.hex(), headers={"e2b-sandbox-id": "x"})
        assert "set-cookie" not in response.headers
        assert kept <= set(response.headers)
        assert ("location" in response.headers) == (origin == "shared")
        assert (response.headers["content-security-policy"] == "sandbox; default-src 'none'") == (origin == "strict")
        assert response.headers["access-control-allow-origin"] == "*"


async def _upgraded(world: World, host: str, path: str = "/", *more: str) -> tuple[bytes, bytes]:
    """Ask for a WebSocket and say something; return the answer's head and what was said back."""
    lines = (f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: Upgrade", "Upgrade: websocket", *more)
    reader, writer = await asyncio.open_connection("127.0.0.1", world.edge.base_url.port)
    try:
        writer.write("\r\n".join((*lines, "", "")).encode())
        async with asyncio.timeout(node_world.DEADLINE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in head:
                return head, b""
            writer.write(b"said\0" * 10)
            return head, await reader.readexactly(50)
    finally:
        writer.close()


async def test_a_websocket_goes_both_ways(world: World) -> None:
    world.port()
    head, said = await _upgraded(world, world.name())
    assert head.startswith(b"HTTP/1.1 101 ")
    assert said == b"said\0" * 10
    world.port(origin="shared")
    assert (await _upgraded(world, "x", "/", f"e2b-sandbox-id: {world.one.sandbox}"))[1] == said


async def test_nothing_but_a_users_server_gets_an_upgrade(world: World) -> None:
    native = f"/v1/sandboxes/{world.one.sandbox}/commands"
    world.verdict = {"x-space-to": "node", "x-space-sandbox": world.one.sandbox}
    assert b" 400 " in (await _upgraded(world, "x", native))[0]
    assert b" 400 " in (await _upgraded(world, "x", "/v1/sandboxes"))[0]
    world.verdict = {"x-space-to": "api"}
    assert b" 400 " in (await _upgraded(world, world.name()))[0]
    world.port(AGENT_PORT)
    assert b" 400 " in (await _upgraded(world, world.name(AGENT_PORT), "/health"))[0]


async def test_lines_arrive_as_they_are_produced_and_end_with_the_sandbox(world: World) -> None:
    world.port()
    arrived = 0
    with pytest.raises(httpx2.RemoteProtocolError):  # noqa: PT012 - the end comes at any line after the action
        async with (
            asyncio.timeout(node_world.DEADLINE_S),
            world.edge.stream("POST", "/events", content=b"0", headers={"host": world.name()}) as response,
        ):
            async for _ in response.aiter_lines():
                arrived += 1
                if arrived == 2:
                    await slot.kill_sockets(world.layout, world.one.slot.address)
    assert arrived >= 2


async def test_a_websocket_ends_with_the_sandbox(world: World) -> None:
    world.port()
    reader, writer = await asyncio.open_connection("127.0.0.1", world.edge.base_url.port)
    writer.write(
        f"GET / HTTP/1.1\r\nHost: {world.name()}\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n".encode()
    )
    async with asyncio.timeout(node_world.DEADLINE_S):
        await reader.readuntil(b"\r\n\r\n")
        await slot.kill_sockets(world.layout, world.one.slot.address)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


async def test_a_large_body_passes_in_pieces(world: World) -> None:
    world.port()
    size, piece = 32 * 1024 * 1024, bytes(1024 * 1024)

    async def body() -> AsyncGenerator[bytes]:
        for _ in range(size // len(piece)):
            yield piece

    headers = {"host": world.name(), "content-length": str(size)}
    response = await world.edge.put("/upload", content=body(), headers=headers, timeout=60)
    assert response.json() == {"bytes": size}


async def test_a_port_that_nobody_serves_is_told_as_such(world: World) -> None:
    world.port(4000)
    response = await world.edge.get("/", headers={"host": world.name(4000)})
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (502, "*")
    assert _e2b(response) == {
        "sandboxId": world.one.sandbox, "message": "The sandbox is running but port is not open", "port": 4000,
        "code": 502,
    }  # fmt: skip
    response = await world.edge.get("/", headers={"host": world.name(4000), "accept": "text/html,*/*"})
    assert (response.status_code, response.headers["content-type"]) == (502, "text/html; charset=utf-8")
    assert "<h1>The sandbox is running but port is not open</h1>" in response.text
    assert f"<code>{world.one.sandbox}</code>, port <code>4000</code>" in response.text


async def test_a_server_that_is_just_starting_is_waited_for(world: World) -> None:
    world.port(4001)
    source = (
        "import http.server, threading, time\n"
        "time.sleep(0.3)\n"
        "s = http.server.HTTPServer(('0.0.0.0', 4001), http.server.SimpleHTTPRequestHandler)\n"
        "s.timeout = 5\ns.handle_request()\n"
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(world.one.python(source))
        response = await world.edge.head("/", headers={"host": world.name(4001)})
        assert response.status_code == 200


async def test_a_server_that_speaks_tls_itself(world: World, tmp_path: Path) -> None:
    world.port(4002, space_tls="1")
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    for file, content in zip((certificate, key), Authority().issue(["other.test"], days=-1), strict=True):
        file.write_text(content)  # one that nobody trusts, and too old
    source = (
        "import http.server, ssl\n"
        "s = http.server.HTTPServer(('0.0.0.0', 4002), http.server.SimpleHTTPRequestHandler)\n"
        "c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
        f"c.load_cert_chain({str(certificate)!r}, {str(key)!r})\n"
        "s.socket = c.wrap_socket(s.socket, server_side=True)\n"
        "s.timeout = 30\ns.handle_request()\n"
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(world.one.python(source))
        response = await world.edge.head("/", headers={"host": world.name(4002)})
        assert response.status_code == 200, response.text
    assert "x-space-tls" not in response.headers


async def test_a_server_that_speaks_something_else(world: World) -> None:
    world.port()
    response = await world.edge.get("/v1/files/stat?" + b"junk\r\n\r\n".hex(), headers={"host": world.name()})
    assert response.status_code == 502
    assert _e2b(response)["message"] == "The sandbox is running but its server did not answer as HTTP"


async def test_the_agents_internal_ports_are_closed_whatever_the_api_says(world: World) -> None:
    for port in (AGENT_ORDERS_PORT, AGENT_INTERNAL_PORT):
        world.port(port)
        response = await world.edge.get("/init", headers={"host": world.name(port)})
        assert _e2b(response) == {
            "sandboxId": world.one.sandbox, "message": "The sandbox is running but port is not open",
            "port": port, "code": 502,
        }  # fmt: skip


async def test_the_agents_port_has_e2bs_calls_and_nothing_more(world: World) -> None:
    world.port(AGENT_PORT, origin="strict", envoy_auth_headers_to_remove="cookie")
    mine = {
        "e2b-sandbox-id": "x",
        "authorization": "Basic dTo=",
        "x-access-token": "t",
        "x-api-key": "k",
        "cookie": "c=1",
    }
    response = await world.edge.get("/files?path=a&username=u", headers=mine)
    seen = dict(response.json()["headers"])
    assert response.json()["path"] == "/files?path=a&username=u"
    assert (seen["authorization"], seen["x-access-token"]) == ("Basic dTo=", "t")
    assert set(seen) == {"host", "accept", "accept-encoding", "user-agent", "authorization", "x-access-token"}
    for path in ("/init", "/v1/commands", "/freeze", "/files/../init", "/%69nit", "/files%2f..%2finit", "//init"):
        refused = await world.edge.get(str(world.edge.base_url).rstrip("/") + path, headers=mine)
        assert refused.status_code == 404, path
        assert _e2b(refused)["sandboxId"] == world.one.sandbox


def _sent_whole(world: World, body: bytes) -> list[int]:
    """Send a request that is refused by its head, body and all, and the next one; return what their answers say."""
    found = []
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", world.edge.base_url.port), node_world.DEADLINE_S) as client:
            head = f"POST /init HTTP/1.1\r\nHost: {world.name(AGENT_PORT)}\r\nContent-Length: {len(body)}\r\n\r\n"
            with contextlib.suppress(OSError):  # the refusal may end the connection before all is sent
                client.sendall(head.encode() + body)
            found.append(int(client.recv(65536).split()[1]))
    return found


@pytest.mark.parametrize("size", [2, 50_000, 2_000_000])
async def test_a_refusal_comes_through_however_much_is_still_being_sent(world: World, size: int) -> None:
    """The ingress proxy ended its connection with the refusal, and the edge, still writing the body, said 503."""
    world.port(AGENT_PORT, origin="strict")
    for _ in range(5):
        assert await asyncio.to_thread(_sent_whole, world, bytes(size)) == [404, 404]


async def test_a_sandbox_that_the_host_does_not_have(world: World) -> None:
    world.port()
    gone = new_id()
    assert isinstance(world.verdict, dict)
    world.verdict |= {"x-space-sandbox": gone}
    response = await world.edge.get("/", headers={"host": world.name()})
    assert _e2b(response) == {"sandboxId": gone, "message": "The sandbox was not found", "code": 502}


@pytest.mark.parametrize(("sent", "status"), [(452, 502), (453, 503), (457, 507), (409, 409), (403, 403)])
async def test_a_refusal_of_the_apis_is_the_clients_answer_5xx_too(world: World, sent: int, status: int) -> None:
    headers = {"retry-after": "1", "access-control-allow-origin": "*", "x-internal": "1", "x-space-to": "node"}
    world.verdict = Response(json.dumps({"code": status}), sent, headers, "application/json; charset=utf-8")
    response = await world.edge.post("/x", content=b"body", headers={"host": world.name()})
    assert _e2b(response) == {"code": status}
    assert (response.headers["retry-after"], response.headers["access-control-allow-origin"]) == ("1", "*")
    assert not [name for name in response.headers if name.startswith("x-")]


async def test_a_crowd_at_a_guests_servers_is_refused_and_its_owner_is_not(world: World) -> None:
    source = (
        f"import os, socket, sys\nos.setuid({world.layout.ingress_uid})\nheld = []\n"
        f"for _ in range({nft.INCOMING}):\n"
        f" s = socket.create_connection(({world.one.slot.address!r}, {PREVIEW_PORT}), 5); held.append(s)\n"
        "print('full', flush=True)\nsys.stdin.read()"
    )
    namespace = netns.path(world.layout.gateway_netns)
    process = await asyncio.create_subprocess_exec(
        "nsenter", f"--net={namespace}", "/usr/bin/python3", "-c", source,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"full\n"
        world.port()
        response = await world.edge.get("/", headers={"host": world.name()})
        assert response.status_code == 429
        body = _e2b(response)
        assert (body["sandboxId"], body["connectionLimit"]) == (world.one.sandbox, nft.INCOMING)
        world.port(AGENT_PORT)
        assert (await world.edge.get("/health", headers={"host": world.name(AGENT_PORT)})).status_code == 200
        world.verdict = {"x-space-to": "node", "x-space-sandbox": world.one.sandbox}
        native = f"/v1/sandboxes/{world.one.sandbox}/files"
        assert (await world.edge.get(native)).status_code == 200
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
    world.port()
    await _eventually_ok(lambda: world.edge.get("/", headers={"host": world.name()}))


async def _eventually_ok(request: Callable[[], Awaitable[httpx2.Response]]) -> None:
    async with asyncio.timeout(30):
        while (await request()).status_code != 200:
            await asyncio.sleep(0.1)


async def test_without_the_api_the_answer_is_e2bs(world: World) -> None:
    with node_world.instance() as layout:
        async with node_world.edge_proxy(layout) as edge:
            for path, headers in (
                ("/", {"host": world.name()}),
                ("/health", {"e2b-sandbox-id": "x"}),
                ("/sandboxes", {}),
            ):
                response = await edge.get(path, headers=headers)
                assert response.status_code == 503
                assert response.headers["should-retry"] == "true"
                assert set(_e2b(response)) == {"code", "message"}


async def test_the_namespace_has_no_way_to_a_guests_ports_but_the_proxys(world: World) -> None:
    dial = f"import socket; socket.create_connection(({world.one.slot.address!r}, {PREVIEW_PORT}), 1)"
    done = await command.run("/usr/bin/python3", "-c", dial, netns=netns.path(world.layout.gateway_netns), check=False)
    assert done.status != 0
