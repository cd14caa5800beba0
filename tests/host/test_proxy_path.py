"""The whole way of a client's request: edge, ingress proxy, gateway, slot, guest; real Envoys, real rules.

The api is a stand-in that speaks its side of the edge's contract: which key may reach which sandbox.
"""

import asyncio
import dataclasses
import os
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import httpx2
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from tests.support import node_world
from tests.support.node_world import Guest

from space.host import command
from space.host.daemon import User, drop_privileges
from space.layout import Layout
from space.model.ids import SandboxId, new_id
from space.net import slot
from space.wire.problem import Problem

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes network namespaces")

KEY = "e2b_" + "a" * 40
TOKEN = "the-agents-token"
Stream = AbstractAsyncContextManager[httpx2.Response]


@dataclasses.dataclass
class World:
    """Everything running: two guests, a client of the edge, and one straight at the ingress proxy."""

    layout: Layout
    one: Guest
    two: Guest
    edge: httpx2.AsyncClient
    node: httpx2.AsyncClient
    asked: list[Request]

    def path(self, guest: Guest, rest: str) -> str:
        """Return the path of an agent's call at the edge."""
        return f"/v1/sandboxes/{guest.sandbox}{rest}"


def _api(asked: list[Request], sandboxes: set[str]) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.api_route("/internal/authz/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "DELETE"])
    async def authz(request: Request, path: str) -> Response:
        asked.append(request)
        if request.headers.get("x-api-key") != KEY:
            problem = Problem(title="Unauthorized", status=401, code="unauthorized", detail="Give your key.")
            headers = {"www-authenticate": "Bearer", "x-internal": "not for clients"}
            return JSONResponse(problem.model_dump(), 401, headers, media_type="application/problem+json")
        sandbox = path.split("/")[2]
        if b"%" in request.scope["raw_path"]:
            problem = Problem(title="Bad request", status=400, code="bad_request", detail="No escapes.")
            return JSONResponse(problem.model_dump(), 400, media_type="application/problem+json")
        if sandbox not in sandboxes:
            problem = Problem(title="Not found", status=404, code="not_found", detail="No such sandbox.")
            return JSONResponse(problem.model_dump(), 404, media_type="application/problem+json")
        verdict = {"x-space-to": "node", "x-space-sandbox": sandbox, "x-access-token": TOKEN, "x-internal": "secret"}
        return Response(status_code=200, headers=verdict)

    @app.get("/v1/stream")
    async def stream() -> StreamingResponse:
        async def lines() -> AsyncGenerator[bytes]:
            yield b"one\n"
            await asyncio.sleep(0.3)
            yield b"two\n"

        return StreamingResponse(lines())

    @app.get("/{path:path}")
    async def anything(request: Request, path: str) -> dict[str, object]:
        return {"path": path, "headers": [[name, value] for name, value in request.headers.items()]}

    return app


@pytest.fixture(scope="module")
async def world() -> AsyncGenerator[World]:
    """All of it, once."""
    asked: list[Request] = []
    with node_world.instance() as layout:
        async with (
            node_world.slots(layout, 2) as (first, second),
            node_world.guest(layout, first) as one,
            node_world.guest(layout, second) as two,
            node_world.gateway(layout),
            node_world.ingress_proxy(layout),
            node_world.api(layout, _api(asked, {one.sandbox, two.sandbox})),
            node_world.edge_proxy(layout) as edge,
            node_world.node_client(layout) as node,
        ):
            await node_world.admit(layout, {one.sandbox: first.address, two.sandbox: second.address})
            edge.headers["x-api-key"] = KEY
            yield World(layout, one, two, edge, node, asked)


def _problem(response: httpx2.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem = Problem.model_validate_json(response.content)
    assert problem.status == response.status_code
    assert problem.detail
    return response.status_code, problem.code


async def test_the_guest_sees_the_clients_request_and_nothing_of_ours(world: World) -> None:
    response = await world.edge.get(
        world.path(world.one, "/files?path=%2Ftmp%2Fa%20b&user=user"),
        headers={"authorization": "Bearer x", "cookie": "c=1", "x-access-token": "mine", "x-mine": "1"},
    )
    seen = response.json()
    assert seen["guest"] == world.one.netns
    assert seen["path"] == "/v1/files?path=%2Ftmp%2Fa%20b&user=user"
    assert seen["file"] == "/tmp/a b"
    assert seen["peer"] == "169.254.0.22"
    headers = dict(seen["headers"])
    assert len(headers) == len(seen["headers"])
    assert headers.pop("x-access-token") == TOKEN
    assert headers.pop("x-mine") == "1"
    assert set(headers) == {"host", "accept", "accept-encoding", "user-agent"}
    assert set(response.headers) == {
        "content-type", "content-length", "date", "x-content-type-options", "content-security-policy",
    }  # fmt: skip


FORGED = {
    "x-space-to": "api",
    "x-envoy-original-dst-host": "",  # filled with the other slot's address
    "x-envoy-original-path": "/init",
    "x-forwarded-for": "100.64.0.5",
    "x-forwarded-host": "other",
    "x-original-url": "/init",
    "x-http-method-override": "DELETE",
}


async def test_forged_headers_choose_no_other_slot(world: World) -> None:
    forged = FORGED | {
        "x-space-sandbox": world.two.sandbox,
        "x-envoy-original-dst-host": f"{world.two.slot.address}:49983",
    }
    seen = (await world.edge.get(world.path(world.one, "/files"), headers=forged)).json()
    assert seen["guest"] == world.one.netns
    assert not set(dict(seen["headers"])) & set(forged)
    # and one hop later, where only the edge and root can connect, the sandbox is the header but the address is not
    inner = {**forged, "x-space-sandbox": world.one.sandbox}
    seen = (await world.node.get("/v1/files", headers=inner)).json()
    assert seen["guest"] == world.one.netns
    assert not set(dict(seen["headers"])) & set(forged)
    two_ids = [("x-space-sandbox", world.one.sandbox), ("x-space-sandbox", world.two.sandbox)]
    assert _problem(await world.node.get("/v1/files", headers=two_ids)) == (404, "not_found")
    assert _problem(await world.node.get("/v1/files", headers={"x-envoy-original-dst-host": "127.0.0.1:22"}))[0] == 404


async def test_lines_arrive_as_they_are_produced(world: World) -> None:
    async with world.edge.stream("POST", world.path(world.one, "/commands"), content=b"4") as response:
        arrived = [time.perf_counter() async for _ in response.aiter_lines()]
    assert len(arrived) == 4
    assert arrived[-1] - arrived[0] > 0.3  # produced 0.6 s apart: a proxy that gathers would give them at once


async def test_the_api_gets_its_own_routes_with_the_key_and_without_forged_headers(world: World) -> None:
    before = len(world.asked)
    seen = (await world.edge.get("/v1/sandboxes?label=a%2Fb", headers=FORGED | {"x-space-sandbox": "x"})).json()
    headers = dict(seen["headers"])
    assert headers["x-api-key"] == KEY
    assert headers["x-forwarded-for"] != FORGED["x-forwarded-for"]
    assert "," not in headers["x-forwarded-for"]
    assert not [name for name in headers if name.startswith(("x-space-", "x-envoy-", "x-original-"))]
    assert len(world.asked) == before  # it authenticates by itself
    async with world.edge.stream("GET", "/v1/stream") as response:
        assert "server" not in response.headers
        assert [line async for line in response.aiter_lines()] == ["one", "two"]


async def test_the_apis_refusal_is_the_clients_answer(world: World) -> None:
    response = await world.edge.get(world.path(world.one, "/files"), headers={"x-api-key": "wrong"})
    assert _problem(response) == (401, "unauthorized")
    assert response.json()["detail"] == "Give your key."
    assert response.headers["www-authenticate"] == "Bearer"
    assert "x-internal" not in response.headers
    assert _problem(await world.edge.post(f"/v1/sandboxes/{new_id()}/commands", content=b"1")) == (404, "not_found")
    head = await world.edge.head(world.path(world.one, "/files"), headers={"x-api-key": "wrong"})
    assert head.status_code == 401


async def _raw(world: World, target: str) -> bytes:
    """Send a request line as it is and return the answer's head and body."""
    url = world.edge.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return answer


async def test_no_spelling_of_a_path_reaches_more_than_the_public_surface(world: World) -> None:
    base = f"/v1/sandboxes/{world.one.sandbox}"
    for rest in (
        "/commands/../init", "/commands/%2e%2e/init", "/files/..;/init", "/%69nit", "/commands//init",
        "/commands/./../init", "/files/%2e%2e%2finit", "/files/..%5cinit", "/commands/x%2foutput", "/files/%00",
        "/init", "/health", "/activity", "/shutdown", "/commands/abc/../../files/../init",
        "/files/unknown", "/commands/a/b/c", "/commands/", "/files/",
    ):  # fmt: skip
        answer = await _raw(world, base + rest)
        assert b'"guest":' not in answer, rest
        assert answer, rest
    for target in ("/internal/authz/x", "/internal", "/v1/../internal/authz/x", "//internal/authz"):
        assert b'"guest":' not in await _raw(world, target), target
    assert b" 404 " in (await _raw(world, "/internal/authz/v1/sandboxes")).split(b"\r\n")[0]
    assert b" 404 " in (await _raw(world, "/v1/../internal/authz/x")).split(b"\r\n")[0]
    # a path is judged, and sent, with its dots and needless escapes resolved
    assert b'"path": "/v1/commands"' in await _raw(world, f"{base}/%63ommands")
    assert b'"path": "/v1/files?path=/a"' in await _raw(world, f"{base}/commands/../files?path=/a")


async def test_errors_of_the_proxies_are_problems(world: World) -> None:
    assert _problem(await world.edge.get(world.path(world.one, "/commands/a%2Fb"))) == (400, "bad_request")
    assert _problem(await world.edge.get("/internal/x")) == (404, "not_found")
    many = {f"x-h{number}": "1" for number in range(120)}
    assert _problem(await world.edge.get("/v1/sandboxes", headers=many)) == (431, "headers_too_large")
    wide = {"x-wide": "a" * 70000}
    assert _problem(await world.edge.get("/v1/sandboxes", headers=wide)) == (431, "headers_too_large")


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"junk\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: a\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["nothing", "junk", "many", "lengths", "both"],
)  # fmt: skip
async def test_an_agent_that_speaks_no_http_is_unreachable_too(world: World, answer: bytes) -> None:
    stat = world.path(world.one, "/files/stat")
    response = await world.edge.get(f"{stat}?{answer.hex()}")
    assert _problem(response) == (503, "sandbox_unreachable")
    assert (await world.edge.get(world.path(world.one, "/files"))).status_code == 200


async def test_an_upgrade_that_nobody_asked_for_opens_no_tunnel(world: World) -> None:
    said = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nMORE"
    url, base = world.edge.base_url, f"/v1/sandboxes/{world.one.sandbox}/files"
    reader, writer = await asyncio.open_connection(url.host, url.port)
    for target, last in ((f"{base}/stat?{said.hex()}", ""), (f"{base}?path=next", "Connection: close\r\n")):
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\n{last}\r\n".encode())
    async with asyncio.timeout(5):
        answers = await reader.read()
    writer.close()
    assert b"MORE" not in answers
    assert b'"file": "next"' in answers


async def test_a_client_whose_network_is_gone_is_noticed(world: World) -> None:
    path = world.path(world.one, "/commands")
    async with world.edge.stream("POST", path, content=b"0") as response:
        assert response.status_code == 200
        async with asyncio.timeout(node_world.DEADLINE_S):
            sockets = ""
            while "timer:(keepalive" not in sockets:  # the retransmission timer shows instead while data is under way
                sockets = (await command.run("ss", "-tnoH", f"( sport = :{world.edge.base_url.port} )")).stdout


async def test_headers_of_a_guest_do_not_act_on_the_apis_origin(world: World) -> None:
    said = (
        b"HTTP/1.1 200 OK\r\nset-cookie: session=x\r\nclear-site-data: *\r\nserver: evil\r\nalt-svc: h3=:1\r\n"
        b"content-security-policy: default-src *\r\nx: a\rset-cookie: b\r\nrefresh: 0;url=//evil\r\nlink: <//evil>\r\n"
        b"www-authenticate: Basic\r\nproxy-authenticate: Basic\r\nnel: {}\r\nreport-to: {}\r\n"
        b"reporting-endpoints: a=b\r\naccess-control-allow-origin: *\r\naccess-control-allow-credentials: true\r\n"
        b"content-type: text/html\r\ncontent-length: 1\r\n\r\na"
    )
    response = await world.edge.get(world.path(world.one, "/files/stat") + "?" + said.hex())
    assert set(response.headers) == {
        "x", "content-type", "content-length", "date", "x-content-type-options", "content-security-policy",
    }  # fmt: skip
    assert response.headers["content-security-policy"] == "sandbox; default-src 'none'"


@pytest.mark.parametrize(
    "header", ["transfer-encoding: xchunked", "connection: upgrade\r\nupgrade: websocket"], ids=["coding", "upgrade"]
)
async def test_what_http_has_and_we_do_not_is_no_reason_to_try_again(world: World, header: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.edge.base_url.port)
    target = world.path(world.one, "/files")
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\n{header}\r\n\r\n".encode())
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"retry-after" not in head


async def test_a_guest_sends_no_client_elsewhere(world: World) -> None:
    # a client that follows redirects may take its `x-api-key` along, to whoever the guest names
    said = b"HTTP/1.1 307 Go\r\nlocation: http://evil/\r\ncontent-location: /v1/keys\r\ncontent-length: 0\r\n\r\n"
    response = await world.edge.get(world.path(world.one, "/files/stat") + "?" + said.hex())
    assert response.status_code == 307
    assert "location" not in response.headers
    assert "content-location" not in response.headers


async def test_an_upload_passes_in_bounded_memory(world: World) -> None:
    size, chunk = 64 * 1024 * 1024, bytes(1024 * 1024)

    async def body() -> AsyncGenerator[bytes]:
        for _ in range(size // len(chunk)):
            yield chunk

    response = await world.edge.put(
        world.path(world.one, "/files?path=/big"), content=body(), headers={"content-length": str(size)}, timeout=60
    )
    assert response.json() == {"bytes": size}


async def _ended_by(stream: Stream, action: Callable[[], Awaitable[None]]) -> None:
    """Read an endless stream, do something at its first line, and see it end: cut off, not complete."""
    done = False
    with pytest.raises(httpx2.RemoteProtocolError):  # noqa: PT012 - the end comes at any line after the action
        async with asyncio.timeout(node_world.DEADLINE_S), stream as response:
            assert response.status_code == 200
            async for _ in response.aiter_lines():
                if not done:
                    await action()
                    done = True
    assert done


async def test_killing_the_sockets_ends_a_stream(world: World) -> None:
    stream = world.edge.stream("POST", world.path(world.one, "/commands"), content=b"0")
    await _ended_by(stream, lambda: slot.kill_sockets(world.layout, world.one.slot.address))


async def test_an_agent_that_does_not_listen_is_sandbox_unreachable(world: World) -> None:
    made = await slot.make(world.layout, 3)
    try:
        async with node_world.guest(world.layout, made) as third:
            await node_world.admit(world.layout, _slots(world) | {third.sandbox: made.address})
            assert (await world.node.get("/v1/health", headers={"x-space-sandbox": third.sandbox})).status_code == 200
        # its tap is unplugged
        response = await world.node.get("/v1/health", headers={"x-space-sandbox": third.sandbox})
        assert _problem(response) == (503, "sandbox_unreachable")
        assert response.headers["retry-after"] == "1"
    finally:
        await node_world.admit(world.layout, _slots(world))
        await slot.destroy(world.layout, 3)


def _slots(world: World) -> dict[SandboxId, str]:
    return {guest.sandbox: guest.slot.address for guest in (world.one, world.two)}


async def test_a_slots_end_ends_its_streams_and_its_address_is_dead(world: World) -> None:
    made = await slot.make(world.layout, 4)
    async with node_world.guest(world.layout, made) as fourth:
        await node_world.admit(world.layout, _slots(world) | {fourth.sandbox: made.address})
        stream = world.node.stream("POST", "/v1/commands", content=b"0", headers={"x-space-sandbox": fourth.sandbox})
        await _ended_by(stream, lambda: slot.destroy(world.layout, 4))
        response = await world.node.get("/v1/health", headers={"x-space-sandbox": fourth.sandbox})
        assert _problem(response) == (503, "sandbox_unreachable")
    await node_world.admit(world.layout, _slots(world))
    response = await world.node.get("/v1/health", headers={"x-space-sandbox": fourth.sandbox})
    assert _problem(response) == (503, "unavailable")


async def test_the_ingress_socket_refuses_strangers(world: World) -> None:
    source = f"import socket; socket.socket(socket.AF_UNIX).connect({str(world.layout.ingress_sock)!r})"

    async def may(uid: int, *groups: int) -> bool:
        argv = (*drop_privileges(User(uid, uid, groups)), "/usr/bin/python3", "-c", source)
        return (await command.run(*argv, check=False)).status == 0

    layout = world.layout
    assert await may(layout.edge_uid, layout.edge_ingress_gid)
    assert not await may(layout.edge_uid)
    for uid in (layout.gateway_uid, layout.api_uid, 12345):
        assert not await may(uid, layout.ingress_gateway_gid, layout.edge_api_gid)


async def test_what_the_way_costs(world: World, record_testsuite_property: Callable[[str, object], None]) -> None:
    for name, client, path, headers in (
        ("ingress", world.node, "/v1/files", {"x-space-sandbox": world.one.sandbox}),
        ("edge", world.edge, world.path(world.one, "/files"), {}),
    ):
        times = []
        for _ in range(50):
            begin = time.perf_counter()
            assert (await client.get(path, headers=headers)).status_code == 200
            times.append(1000 * (time.perf_counter() - begin))
        record_testsuite_property(f"{name}_request_ms", statistics.median(times))


async def test_each_part_gone_is_a_refusal_that_says_so() -> None:
    asked: list[Request] = []
    with node_world.instance() as layout:
        async with (
            node_world.slots(layout, 1) as (only,),
            node_world.guest(layout, only) as guest,
            node_world.edge_proxy(layout) as edge,
        ):
            edge.headers["x-api-key"] = KEY
            path = f"/v1/sandboxes/{guest.sandbox}/files"
            for target in (path, "/v1/sandboxes"):
                response = await edge.get(target)  # no api
                assert _problem(response) == (503, "unavailable"), target
                assert response.json()["detail"].startswith("The API "), target
                assert response.headers["retry-after"] == "1"
            async with node_world.api(layout, _api(asked, {guest.sandbox})):
                assert _problem(await edge.get(path)) == (503, "sandbox_unreachable")  # no ingress proxy
                async with node_world.ingress_proxy(layout):
                    response = await edge.get(path)  # no gateway
                    assert _problem(response) == (503, "unavailable")
                    assert response.json()["detail"].startswith("The gateway ")
                    async with node_world.gateway(layout) as gateway:
                        assert _problem(await edge.get(path)) == (503, "unavailable")  # it knows no slots yet
                        await node_world.admit(layout, {guest.sandbox: only.address})
                        assert (await edge.get(path)).status_code == 200
                        await gateway.stop(3)
                        assert _problem(await edge.get(path)) == (503, "unavailable")
