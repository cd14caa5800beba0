"""Attacks by way of sandboxes' ports: by clients of the edge, and by servers in sandboxes on who visits them."""

import contextlib
import json
from collections.abc import AsyncGenerator

import httpx2
from tests.support.cases import case
from tests.support.range import Json, Range

from space.control.traffic import traffic_token
from space.model.ids import new_id

PORT = 8000

_ECHO = f"""
import http.server, json, os, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        if self.path.startswith('/raw?'):
            self.wfile.write(bytes.fromhex(self.path[5:]))
            self.close_connection = True
            return
        if self.path == '/endless':
            try:
                self.wfile.write(b'HTTP/1.1 200 OK\\r\\n')
                while True: self.wfile.write(b'x: ' + b'a' * 1000 + b'\\r\\n')
            except OSError:
                return
        if self.path == '/slow':
            self.wfile.write(b'HTTP/1.1 200 OK\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n1\\r\\na\\r\\n')
            self.wfile.flush()
            self.rfile.read(1)
            return
        body = json.dumps({{'name': os.uname().nodename, 'path': self.path, 'headers': list(self.headers.items())}})
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())
    do_POST = do_GET
    def log_message(self, *args): pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024
server = Server(('0.0.0.0', {PORT}), Handler)
print('flows', flush=True)
server.serve_forever()
"""


def _name(sandbox: str, port: int | str = PORT) -> str:
    return f"{port}-{sandbox}.range.test"


async def _ask(r: Range, sandbox: str, path: str = "/", **headers: str) -> httpx2.Response:
    """Ask a sandbox's server by its name; the range's client shows its key."""
    sent = {"host": _name(sandbox)} | {name.replace("_", "-"): value for name, value in headers.items()}
    return await r.space.http.get(path, headers=sent)


@contextlib.asynccontextmanager
async def _serving(r: Range, *sandboxes: str) -> AsyncGenerator[dict[str, Json]]:
    """Have a server in each; yields what each says to an honest request, by which it is told from the others."""
    async with contextlib.AsyncExitStack() as stack:
        told = {}
        for sandbox in sandboxes:
            await stack.enter_async_context(r.flowing(sandbox, _ECHO))
            answer = await _ask(r, sandbox)
            assert answer.status_code == 200, answer.text
            told[sandbox] = answer.json()
        assert len({one["name"] for one in told.values()}) == len(sandboxes)
        yield told


@case("I-01", "the port written in other ways, and numbers that are none", "what the server in the sandbox saw")
async def port_spelling(r: Range) -> None:
    async with _serving(r, r.a):
        for port in (
            "08000",
            "+8000",
            "8000.",
            " 8000",
            "0x1f40",
            "8000,8000",
            "73536",
            "-57536",
            "8000\x00",
            "\uff18\uff10\uff10\uff10",
        ):
            headers = [(b"e2b-sandbox-id", r.a.encode()), (b"e2b-sandbox-port", port.encode())]
            with contextlib.suppress(httpx2.HTTPError):
                answer = await r.space.http.get("/", headers=headers)
                # the client strips blanks, as HTTP says; everything else is not understood
                assert answer.status_code == 400 or port.strip() == "8000", (port, answer.text)
        answer = await r.space.http.get("/", headers={"host": _name(r.a, "08000")})
        assert answer.status_code == 400, answer.text


@case(
    "I-02", "the agent's internal ports, by name, header, and calls of it at the public one", "what answers", core=True
)
async def reserved_ports(r: Range) -> None:
    for call in ("/init", "/freeze", "/activity", "/shutdown"):
        for headers in (
            {"host": _name(r.a, 49982)}, {"e2b-sandbox-id": r.a, "e2b-sandbox-port": "49982"},
            {"host": _name(r.a, 49981)}, {"e2b-sandbox-id": r.a, "e2b-sandbox-port": "49981"},
            {"host": _name(r.a, "049982")}, {"e2b-sandbox-id": r.a, "e2b-sandbox-port": "49982.0"},
        ):  # fmt: skip
            answer = await r.space.http.post(call, headers=headers, json={})
            assert answer.status_code in (400, 502), (headers, answer.text)
        for path in (
            call,
            f"/files/..{call}",
            f"/files/%2e%2e{call}",
            f"/files/..%2f{call[1:]}",
            f"/{call}",
            f"/;{call}",
        ):
            answer = await r.space.http.post(r.space.url + path, headers={"host": _name(r.a, 49983)}, json={})
            assert answer.status_code in (400, 404), (path, answer.status_code, answer.text)
            assert answer.json()["sandboxId"] == r.a, "it is refused on the way, not by the agent"
    await r.control()


@case("I-03", "headers that would lead a request to another sandbox", "whose server answers", core=True)
async def forged_headers(r: Range) -> None:
    slot = r.slot(r.b).address
    async with _serving(r, r.a, r.b) as told:
        answer = await _ask(
            r, r.a, "/forged", e2b_sandbox_id=r.b, e2b_sandbox_port=str(PORT), x_space_sandbox=r.b, x_space_to="node",
            x_space_port="49982", x_space_host="evil", x_envoy_original_dst_host=f"{slot}:{PORT}",
            x_forwarded_host=_name(r.b), x_original_url="/other", x_envoy_original_path="/other",
        )  # fmt: skip
        assert answer.json()["name"] == told[r.a]["name"], answer.text
        assert answer.json()["path"] == "/forged"
        seen = {name.lower(): value for name, value in answer.json()["headers"]}
        assert seen["host"] == _name(r.a)
        assert not [name for name in seen if name.startswith(("x-space-", "x-envoy-", "e2b-"))], seen
        for path in (f"//{_name(r.b)}/", f"/../../{r.b}", f"/@{_name(r.b)}"):
            answer = await r.space.http.get(r.space.url + path, headers={"host": _name(r.a)})
            assert answer.json()["name"] == told[r.a]["name"], answer.text


@case("I-04", "keys and tokens that a client shows, read by the server in the sandbox", "what it was sent", core=True)
async def token_leakage(r: Range) -> None:
    key = r.space.key
    token = (await r.space.http.get(f"/sandboxes/{r.a}")).json()["envdAccessToken"]
    async with _serving(r, r.a):
        for headers in (
            {"x_api_key": key}, {"authorization": f"Bearer {key}"},
            {"e2b_traffic_access_token": traffic_token(token), "x_access_token": token},
        ):  # fmt: skip
            answer = await _ask(r, r.a, **headers)
            assert answer.status_code == 200, answer.text
            for secret in (key, token, traffic_token(token)):
                assert secret not in answer.text, answer.text
        async with httpx2.AsyncClient(base_url=r.space.url, trust_env=False) as stranger:
            answer = await stranger.get("/", headers={"host": _name(r.a)})
            assert answer.status_code == 403, answer.text
            answer = await stranger.get("/", headers={"host": _name(r.a), "e2b-traffic-access-token": token})
            assert answer.status_code == 403, "the agent's token is another one"


@case(
    "I-06", "a server that sends its visitors, or the proxy, elsewhere", "where the proxy goes, what reaches a client"
)
async def leading_elsewhere(r: Range) -> None:
    said = (
        b"HTTP/1.1 302 Go\r\nlocation: http://169.254.169.254/\r\nx-accel-redirect: /internal/\r\n"
        b"x-sendfile: /etc/shadow\r\nset-cookie: k=v; Domain=range.test\r\nalt-svc: h3=:1\r\ncontent-length: 0\r\n\r\n"
    )
    async with _serving(r, r.a):
        answer = await _ask(r, r.a, f"/raw?{said.hex()}")
        assert answer.status_code == 302, "it is the client's to follow"
        for name in ("location", "x-accel-redirect", "x-sendfile", "set-cookie", "alt-svc"):
            assert name not in answer.headers, "a client that shows its key is led nowhere"


@case("I-08", "answers that are no HTTP, split, or have no end", "that the edge still serves B, and its memory")
async def attacking_the_edge(r: Range) -> None:
    before = max(r.rss_mib("edge"), r.rss_mib("ingress"))
    async with _serving(r, r.a, r.b) as told:
        both = b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
        upgrade = b"HTTP/1.1 101 Switching\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
        for said in (
            b"", b"junk", b"HTTP/1.1 200 OK\r\nx: a\rset-cookie: b=c\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + both + b"HTTP/1.1 200 OK\r\n\r\n", upgrade + b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 99999 x\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
            b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 5000,
        ):  # fmt: skip
            with contextlib.suppress(httpx2.HTTPError):
                answer = await _ask(r, r.a, f"/raw?{said[:8000].hex()}")
                assert "set-cookie" not in answer.headers, said
            assert (await _ask(r, r.b)).json()["name"] == told[r.b]["name"]
        assert (await _ask(r, r.a, "/endless")).status_code == 502
        assert max(r.rss_mib("edge"), r.rss_mib("ingress")) < before + 100


@case("I-11", "guesses at names and signatures, and a crowd at one sandbox", "that B is served, and nobody woken")
async def crowds_and_guesses(r: Range) -> None:
    async with _serving(r, r.a, r.b) as told:
        for _ in range(20):
            assert (await _ask(r, new_id())).status_code == 502
        statuses = [(await r.space.http.get("/files?path=a&signature=v1_x")).status_code for _ in range(35)]
        assert set(statuses) == {401, 429}, statuses
        limits = httpx2.Limits(max_connections=700)
        async with (
            httpx2.AsyncClient(base_url=r.space.url, trust_env=False, timeout=60, limits=limits) as crowd,
            contextlib.AsyncExitStack() as held,
        ):
            headers = {"host": _name(r.a), "x-api-key": r.space.key}
            refused = 0
            for _ in range(560):
                answer = await held.enter_async_context(crowd.stream("GET", "/slow", headers=headers))
                refused += answer.status_code == 429
            assert refused >= 560 - 512, refused
            assert (await _ask(r, r.b)).json()["name"] == told[r.b]["name"]
            assert (await r.shell(r.a, ["true"]))[0] == 0, "its owner has a way in"


@case("M-01", "another sandbox's server, from inside a sandbox", "who may connect", core=True)
async def sandbox_to_sandbox(r: Range) -> None:
    async with _serving(r, r.b):
        addresses = [r.slot(r.b).address, r.slot(r.b).gateway_address, r.slot(r.a).gateway_address, "169.254.0.22"]
        targets = [(address, port) for address in addresses for port in (PORT, 49981, 49982, 49983)]
        out = await r.run(r.a, f"show(dial({json.dumps(targets)}))")
        assert "open" not in out, out
