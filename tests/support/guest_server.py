"""An HTTP server that stands where a guest's agent is, in tests of the way to it. Run as a script inside its namespace.

It says what it was sent (`/v1/files`), answers with raw bytes (`/v1/files/stat`), counts a body (`PUT /v1/files`),
streams lines (`POST /v1/commands`) and answers on every port given, so that a test can tell "refused on the way" from
"nobody listens".
"""

import http.server
import json
import socketserver
import sys
import threading
import urllib.parse


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    guest = ""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Say nothing."""

    def _answer(self, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("set-cookie", "guest=1; Path=/")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """Tell the request as it arrived, or say what the query tells to; after an upgrade, say what is said."""
        if self.headers["upgrade"]:
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
            while said := self.connection.recv(65536):
                self.wfile.write(said)
            self.close_connection = True
            return
        headers = [[name.lower(), value] for name, value in self.headers.items()]
        query = urllib.parse.urlsplit(self.path).query
        if self.path.startswith("/v1/files/stat"):
            self.wfile.write(bytes.fromhex(query))
            self.close_connection = True
            return
        self._answer({
            "guest": self.guest, "path": self.path, "headers": headers, "peer": self.client_address[0],
            "file": urllib.parse.parse_qs(query).get("path", [""])[0],
        })  # fmt: skip

    def do_PUT(self) -> None:
        """Count the body."""
        left = count = int(self.headers["content-length"])
        while left:
            left -= len(self.rfile.read(min(left, 65536)))
        self._answer({"bytes": count})

    def do_POST(self) -> None:
        """Stream a line every 0.2 s: as many as the body says, for ever where it says 0."""
        wanted = int(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "application/x-ndjson")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        tick = threading.Event()
        number = 0
        while not wanted or number < wanted:
            line = json.dumps({"line": number}).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            number += 1
            tick.wait(0.2)
        self.wfile.write(b"0\r\n\r\n")


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


def main(name: str, *ports: str) -> None:
    """Serve on all interfaces of this namespace."""
    _Handler.guest = name
    servers = [_Server(("0.0.0.0", int(port)), _Handler) for port in ports]
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    servers[0].serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
