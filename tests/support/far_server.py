"""The servers of a test's internet, in one process. Run as a script inside its namespace with a JSON file of facts:

    {"dns": {name: [address...]}, "resolver": address, "certs": {name: pem file}, "default_cert": pem file,
     "addresses": [address...], "log": file}

- DNS on the resolver's address: the table, `*.suffix` too; every question is logged.
- HTTPS on 443 (certificate by the name in the handshake) and 8443, HTTP on 80, of every address: echoes a request as
  JSON. `/slow` sends a line every 50 ms for ever, `/hold` nothing after its headers, `/upload` counts the body,
  `/redirect?to=`, `/bytes?n=`, `/ws` is a WebSocket by its handshake only and then echoes bytes, `/token` gives OAuth
  tokens, `/token?once=` takes a refresh token once, `/reflect` shows a header, `/early` does so in a 103.
- TCP on 2222: speaks first, then echoes.

Every request's line is logged before it is answered, so that a test can tell what has arrived.
"""

import base64
import gzip
import hashlib
import http.server
import json
import socket
import socketserver
import ssl
import struct
import sys
import threading
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FACTS: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
_LOCK = threading.Lock()
_TOKENS = [0]
_USED: set[str] = set()


def _log(**facts: object) -> None:
    with _LOCK, Path(FACTS["log"]).open("a") as log:
        log.write(json.dumps(facts) + "\n")


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Say nothing."""

    def _seen(self) -> dict[str, object]:
        tls = isinstance(self.connection, ssl.SSLSocket)
        return {
            "kind": "request",
            "tls": tls,
            "sni": getattr(self.connection, "asked_for", None),
            "local": self.connection.getsockname(),
            "peer": self.client_address,
            "method": self.command,
            "path": self.path,
            "headers": [[name, value] for name, value in self.headers.items()],
        }

    def _answer(
        self, body: bytes, kind: str = "application/json", status: int = 200, extra: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **(extra or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found
        return self.rfile.read(int(self.headers.get("content-length", "0")))

    def _any(self) -> None:
        seen = self._seen()
        _log(**seen)
        path, _, query = self.path.partition("?")
        parameters = dict(urllib.parse.parse_qsl(query))
        if path == "/slow":
            self._slow()
        elif path == "/hold":
            self._hold()
        elif path == "/upload":
            self._upload()
        elif path == "/ws":
            self._websocket()
        elif path == "/redirect":
            self._answer(b"", status=302, extra={"location": parameters["to"]})
        elif path == "/bytes":
            self._answer(bytes(int(parameters["n"])), "application/octet-stream")
        elif path == "/early":
            self.wfile.write(
                b"HTTP/1.1 103 Early Hints\r\nlink: " + self.headers.get("x-api-key", "").encode() + b"\r\n\r\n"
            )
            self._answer(b"{}")
        elif path == "/reflect":
            self._show_header(parameters)
        elif path == "/token":
            self._token(parameters)
        else:
            seen["body"] = self._body().decode("latin-1")
            self._answer(json.dumps(seen).encode(), extra={"alt-svc": 'h3=":443"'} if path == "/alt" else {})

    def _token(self, parameters: Mapping[str, str]) -> None:
        form = dict(urllib.parse.parse_qsl(self._body().decode()))
        with _LOCK:
            _TOKENS[0] += 1
            used = "once" in parameters and form["refresh_token"] in _USED
            _USED.add(form.get("refresh_token", ""))
        _log(kind="token", form=form, authorization=self.headers.get("authorization"), used=used)
        if used:
            self._answer(b'{"error": "invalid_grant"}', status=400)
            return
        life = int(parameters.get("life", "3600"))
        token = {"access_token": f"token-{_TOKENS[0]}", "expires_in": life, "token_type": "Bearer"}
        self._answer(json.dumps(token | {"refresh_token": f"refresh-{_TOKENS[0]}"}).encode())

    def _show_header(self, parameters: Mapping[str, str]) -> None:
        """Say the header that `header` names, in pieces of `piece` bytes, in the form `form`."""
        value = self.headers.get(parameters["header"], "")
        forms = {
            "raw": value.encode(),
            "base64": base64.b64encode(b"user:" + value.encode() + b"!"),
            "base64-1": base64.b64encode(b"x" + value.encode()),
            "url": urllib.parse.quote(value, safe="").encode(),
            "json": json.dumps({"v": value}).encode(),
            "gzip": gzip.compress(value.encode()),
        }
        form = parameters.get("form", "raw")
        filler = b"." * int(parameters.get("filler", "100"))
        body = forms[form] if form == "gzip" else filler + forms[form] + filler
        size = int(parameters.get("piece", "1000000"))
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.send_header("x-echo", value)
        self.send_header("etag", '"abc"')
        if form == "gzip":
            self.send_header("content-encoding", "gzip")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for at in range(0, len(body), size):
            part = body[at : at + size]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def _slow(self) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"5\r\ntick\n\r\n")
                time.sleep(0.05)  # noqa: TID251 - the server's own pace, not a wait of a test
        except OSError:
            _log(kind="ended", path=self.path)
            self.close_connection = True

    def _hold(self) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.connection.recv(1)
        self.close_connection = True

    def _upload(self) -> None:
        left = count = int(self.headers["content-length"])
        while left:
            part = self.rfile.read1(min(left, 65536))
            if not part:
                _log(kind="ended", path=self.path)
                self.close_connection = True
                return
            left -= len(part)
        self._answer(json.dumps({"bytes": count}).encode())

    def _websocket(self) -> None:
        if self.headers.get("upgrade", "").lower() != "websocket":
            self._answer(b"no websocket", "text/plain", 400)
            return
        magic = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(magic.encode(), usedforsecurity=False).digest()).decode()
        self.send_response(101)
        for name, value in (("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-accept", accept)):
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        try:
            while data := self.connection.recv(65536):
                self.connection.sendall(data)
        except OSError:
            pass
        _log(kind="ended", path=self.path)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_TRACE = do_FOO = _any  # noqa: N815


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256
    context: ssl.SSLContext | None = None

    def get_request(self) -> tuple[Any, Any]:
        """Accept without the handshake, which is the connection's own thread's."""
        client, address = self.socket.accept()
        _log(kind="connection", local=client.getsockname())
        return client, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the handshake, then serve."""
        if self.context is not None:
            request.settimeout(10)
            request = self.context.wrap_socket(request, server_side=True)
            request.settimeout(None)
        super().finish_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


def _context(file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def _tls() -> ssl.SSLContext:
    by_name = {name: _context(file) for name, file in FACTS["certs"].items()}
    base = _context(FACTS["default_cert"])

    def choose(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        connection.asked_for = name  # type: ignore[attr-defined] # for the handler
        if name in by_name:
            connection.context = by_name[name]

    base.sni_callback = choose
    return base


def _addresses(name: str) -> list[str]:
    table = FACTS["dns"]
    if name in table:
        return list(table[name])
    return next((list(found) for suffix, found in table.items() if suffix[:1] == "*" and name.endswith(suffix[1:])), [])


def _dns() -> None:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((FACTS["resolver"], 53))
    while True:
        question, peer = server.recvfrom(4096)
        at, labels = 12, []
        while size := question[at]:
            labels.append(question[at + 1 : at + 1 + size].decode("latin-1"))
            at += 1 + size
        name, kind = ".".join(labels).lower(), struct.unpack_from("!H", question, at + 1)[0]
        _log(kind="dns", name=name, type=kind)
        found = _addresses(name) if kind == 1 else []
        code = 0 if found else 3
        head = question[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(found), 0, 0)
        records = b"".join(struct.pack("!HHHIH4s", 0xC00C, 1, 1, 0, 4, socket.inet_aton(one)) for one in found)
        server.sendto(head + question[12 : at + 5] + records, peer)


class _Raw(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        """Speak first, then echo until the end, and say so."""
        _log(kind="raw", local=self.request.getsockname())
        self.request.sendall(b"220 ready\n")
        try:
            while data := self.request.recv(65536):
                self.request.sendall(data)
            self.request.sendall(b"bye\n")
        except OSError:
            pass
        _log(kind="ended", path="raw")


class _RawServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64


def main() -> None:
    """Serve on all addresses."""
    context = _tls()
    servers: list[socketserver.BaseServer] = []
    for port, tls in ((443, True), (8443, True), (80, False)):
        server = _Server(("0.0.0.0", port), _Handler)
        server.context = context if tls else None
        servers.append(server)
    servers.append(_RawServer(("0.0.0.0", 2222), _Raw))
    for one in servers:
        threading.Thread(target=one.serve_forever, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _dns()


if __name__ == "__main__":
    main()
