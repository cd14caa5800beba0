"""What is behind the web servers of the tests' internet, in one process: `-m tests.support.internet_app FACTS`.

It takes all of far_server.py and adds what a web server passes on (nginx ends TLS): server-sent events, a git server,
bodies that repeat the request in every encoding, answers of the name server that change from one question to the next,
and a sink on every other port of the evil address, which keeps all bytes.
"""

import gzip
import json
import os
import socket
import socketserver
import struct
import subprocess
import threading
from typing import Any

from tests.support import far_server

_FACTS = far_server.FACTS
_SO_ORIGINAL_DST = 80
_asked: dict[str, int] = {}


class Handler(far_server._Handler):
    """A request that nginx passed on; `x-name` is the name in the TLS handshake, "" for plain HTTP."""

    def _any(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/events":
            self._events()
        elif path.startswith("/reflect/"):
            self._reflect(path.removeprefix("/reflect/"))
        elif path.startswith("/repo.git/"):
            self._git()
        elif path == "/public/ws":
            far_server._log(**self._seen())
            self._websocket()
        else:
            super()._any()

    def _seen(self) -> dict[str, object]:
        name = self.headers.get("x-name", "")
        seen = super()._seen() | {"tls": bool(name), "sni": name, "local": [self.headers.get("x-local", ""), 0]}
        ours = ("x-name", "x-local", "connection")
        seen["headers"] = [[key, value] for key, value in self.headers.items() if key.lower() not in ours]
        return seen

    def _events(self) -> None:
        far_server._log(**self._seen())
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number in range(3):
            event = f"data: {number}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def _reflect(self, how: str) -> None:
        """Repeat the request's headers, as a server does that reports an error too well."""
        far_server._log(**self._seen())
        text = json.dumps(self._seen()["headers"]).encode()
        if how == "gzip":
            self._answer(gzip.compress(text), extra={"content-encoding": "gzip"})
        elif how == "header":
            self._answer(b"{}", extra={"x-echo": self.headers.get("authorization", "")})
        elif how == "chunked":
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for byte in text:  # one to a chunk, so that no secret is whole in any
                self.wfile.write(b"1\r\n%c\r\n" % byte)
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._answer(text)

    def _git(self) -> None:
        """Serve the repository by git's own program (git-http-backend(1))."""
        far_server._log(**self._seen())
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "GIT_PROJECT_ROOT": _FACTS["repositories"],
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "HTTP_GIT_PROTOCOL": self.headers.get("git-protocol", ""),
            "REMOTE_ADDR": "203.0.113.1",
        }
        body = self._body()
        program = "/usr/lib/git-core/git-http-backend"
        done = subprocess.run([program], env=environment, input=body, capture_output=True, check=True)
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(headers.pop("Status", "200").split()[0])
        self._answer(answer, headers.pop("Content-Type", "text/plain"), status, headers)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_TRACE = do_FOO = _any  # noqa: N815


class Sink(socketserver.BaseRequestHandler):
    """Takes whatever comes and answers nothing."""

    def handle(self) -> None:
        """Keep every byte of a connection, up to 1 MiB."""
        meant = self.request.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
        port, address = struct.unpack("!2xH4s8x", meant)
        kept = b""
        try:
            while len(kept) < 2**20 and (data := self.request.recv(65536)):
                kept += data
        except OSError:
            pass
        far_server._log(kind="sink", address=socket.inet_ntoa(address), port=port, data=kept.decode("latin-1"))


def _scripted(name: str, plain: Any = far_server._addresses) -> list[str]:
    """Return the addresses of a name: of a script the next, from then on its last."""
    script = _FACTS["scripts"].get(name)
    if script is None:
        found: list[str] = plain(name)
        return found
    turn = _asked.get(name, 0)
    _asked[name] = turn + 1
    return [script[min(turn, len(script) - 1)]]


def main() -> None:
    """Serve until killed."""
    far_server._addresses = _scripted
    web = far_server._Server(("127.0.0.1", 9000), Handler)
    servers: list[socketserver.BaseServer] = [
        web,
        far_server._RawServer(("0.0.0.0", 2222), far_server._Raw),
        far_server._RawServer(("0.0.0.0", 9999), Sink),
    ]
    for one in servers:
        threading.Thread(target=one.serve_forever, daemon=True).start()
    os.write(1, b"ready\n")
    far_server._dns()


if __name__ == "__main__":
    main()
