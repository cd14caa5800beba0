# sdk: newest
"""Servers in sandboxes: by header and by name, WebSockets, closed ports, private ports, the Host that they see."""

import json
import os
import socket
import time
import urllib.parse

import httpx

from e2b import Sandbox

URL = os.environ["E2B_SANDBOX_URL"]  # noqa: TID251 - a user's program
EDGE = urllib.parse.urlsplit(URL)

SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers["upgrade"]:
            self.wfile.write(b"HTTP/1.1 101 Switching\\r\\nupgrade: websocket\\r\\nconnection: upgrade\\r\\n\\r\\n")
            while said := self.connection.recv(1000):
                self.wfile.write(said)
            self.close_connection = True
            return
        body = json.dumps({"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("set-cookie", "a=1; Domain=localhost; Path=/")
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""


def named(port: int, sandbox_id: str) -> str:
    """Return the name of a port; no name server has to know it, since the address is the edge's."""
    return f"{port}-{sandbox_id}.localhost"


def ask(port: int, sandbox_id: str, path: str = "/", **headers: str) -> httpx.Response:
    """Ask a port by its name."""
    extra = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.get(URL + path, headers={"host": named(port, sandbox_id), **extra}, timeout=30)


def served(sandbox: Sandbox, port: int, address: str, **headers: str) -> dict:
    """Start a server in a sandbox and return what it saw of the first request that reached it."""
    sandbox.commands.run(f"python3 /tmp/server.py {address} {port}", background=True)
    deadline = time.monotonic() + 60
    while True:
        answer = ask(port, sandbox.sandbox_id, **headers)
        if answer.status_code == 200:
            return answer.json()["headers"]
        assert answer.status_code == 502, answer.text
        assert answer.json()["message"] == "The sandbox is running but port is not open", answer.text
        assert time.monotonic() < deadline, answer.text


def websocket(port: int, sandbox_id: str) -> bytes:
    """Upgrade a connection, say something and return what came back."""
    with socket.create_connection((EDGE.hostname, EDGE.port), 30) as connection:
        head = f"GET / HTTP/1.1\r\nHost: {named(port, sandbox_id)}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        connection.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(1000)
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        connection.sendall(b"hello")
        return connection.recv(1000)


def main() -> None:
    """Try all of it on one open and one private sandbox."""
    sandbox = Sandbox.create("base", timeout=120)
    ident = sandbox.sandbox_id
    assert sandbox.get_host(8000).startswith(f"8000-{ident}.")
    sandbox.files.write("/tmp/server.py", SERVER)
    secrets = {"x_api_key": sandbox.connection_config.api_key, "x_access_token": sandbox._envd_access_token}
    seen = served(sandbox, 8000, "0.0.0.0", **secrets)
    assert seen.pop("host") == named(8000, ident)
    assert seen.pop("x-forwarded-proto") == "http"
    assert set(seen) <= {"accept", "accept-encoding", "connection", "user-agent"}, seen
    # a server that listens on loopback alone is reached as well
    assert served(sandbox, 8001, "127.0.0.1")["host"] == named(8001, ident)

    by_header = {"e2b-sandbox-id": ident, "e2b-sandbox-port": "8000"}
    answer = httpx.get(f"{URL}/a%2Fb?c=d", headers=by_header)
    assert (answer.json()["path"], answer.json()["headers"]["host"]) == ("/a%2Fb?c=d", "localhost:8000"), answer.text
    assert "set-cookie" not in answer.headers
    assert ask(8000, ident).headers["set-cookie"] == "a=1; Path=/"
    assert websocket(8000, ident) == b"hello"

    closed = ask(4000, ident)
    expected = {"sandboxId": ident, "message": "The sandbox is running but port is not open", "port": 4000, "code": 502}
    assert (closed.status_code, closed.json()) == (502, expected), closed.text
    page = ask(4000, ident, accept="text/html")
    assert (page.status_code, page.headers["content-type"]) == (502, "text/html; charset=utf-8")
    for port in (49981, 49982):
        assert ask(port, ident, "/init").json() == expected | {"port": port}
    gone = ask(8000, "a" * 20)
    assert (gone.status_code, gone.json()["message"]) == (502, "The sandbox was not found"), gone.text

    network = {"allow_public_traffic": False, "mask_request_host": "localhost:${PORT}"}
    private = Sandbox.create("base", timeout=120, network=network)
    token = private.traffic_access_token
    assert token
    private.files.write("/tmp/server.py", SERVER)
    seen = served(private, 8000, "0.0.0.0", e2b_traffic_access_token=token)
    assert seen["host"] == "localhost:8000", seen
    assert seen["x-forwarded-host"] == named(8000, private.sandbox_id), seen
    assert "e2b-traffic-access-token" not in seen
    for headers, says in (({}, "is missing"), ({"e2b_traffic_access_token": "wrong"}, "is invalid")):
        answer = ask(8000, private.sandbox_id, **headers)
        assert answer.status_code == 403, answer.text
        assert answer.json()["message"].endswith(says), answer.text
    assert private.commands.run("echo in").stdout == "in\n", "the agent's port needs no traffic token"
    private.kill()
    sandbox.kill()
    gone = ask(8000, ident)
    assert json.loads(gone.text) == {"sandboxId": ident, "message": "The sandbox was not found", "code": 502}


main()
