"""What a guest's programs do, as functions for the lines that a test runs inside a guest's namespace.

Standard library only; the guest is a namespace with the machine's Python. `CA` is set by whoever runs it.
"""

import functools
import http.client
import json
import socket
import ssl
import struct
import sys
from typing import Any

CA = ""
NAME_SERVER = "169.254.0.22"
A, AAAA, HTTPS, TXT, ANY = 1, 28, 65, 16, 255


def question(name: str, kind: int = A, cls: int = 1, ident: int = 7, flags: int = 0x0100) -> bytes:
    """Return a DNS question's bytes."""
    labels = [part.encode("latin-1") for part in name.split(".")] if name else []
    packed = b"".join(bytes([len(part)]) + part for part in labels) + b"\0"
    return struct.pack("!HHHHHH", ident, flags, 1, 0, 0, 0) + packed + struct.pack("!HH", kind, cls)


def send(data: bytes, server: str = NAME_SERVER, tcp: bool = False, timeout: float = 4) -> bytes | None:
    """Send a DNS message; return the answer's bytes, or None."""
    try:
        if tcp:
            with socket.create_connection((server, 53), timeout) as s:
                s.sendall(struct.pack("!H", len(data)) + data)
                head = s.recv(2)
                return s.recv(int.from_bytes(head, "big")) if head else None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(timeout)
            s.sendto(data, (server, 53))
            return s.recv(4096)
    except OSError:
        return None


def parse(answer: bytes) -> list[Any]:
    """Return [rcode, addresses] of an answer."""
    count = struct.unpack_from("!H", answer, 6)[0]
    found = [socket.inet_ntoa(answer[len(answer) - 4 - 16 * i : len(answer) - 16 * i]) for i in range(count)]
    return [answer[3] & 15, found]


def lookup(name: str, kind: int = A, tcp: bool = False, server: str = NAME_SERVER) -> list[Any] | None:
    """Ask; return [rcode, addresses], or None where nothing came."""
    answer = send(question(name, kind), server, tcp)
    return None if answer is None else parse(answer)


def address_of(name: str) -> str:
    """Return the address of a name that must have one."""
    answer = lookup(name)
    assert answer is not None, name
    assert answer[0] == 0, (name, answer)
    return str(answer[1][0])


@functools.cache
def context(alpn: tuple[str, ...] = (), check_hostname: bool = True) -> ssl.SSLContext:
    """Return the trust of a guest: SPACE's root."""
    made = ssl.create_default_context(cafile=CA)
    made.check_hostname = check_hostname
    if alpn:
        made.set_alpn_protocols(list(alpn))
    return made


def connect(
    name: str,
    port: int = 443,
    tls: bool = True,
    sni: str | None = "",
    address: str | None = None,
    alpn: list[str] | None = None,
) -> Any:
    """Open a connection; `sni` None sends none, "" sends the name."""
    s = socket.create_connection((address or address_of(name), port), 8)
    if not tls:
        return s
    made = context(tuple(alpn or ()), check_hostname=sni == "")
    return made.wrap_socket(s, server_hostname=None if sni is None else sni or name)


def fetch(
    name: str,
    path: str = "/",
    method: str = "GET",
    host: str | None = None,
    headers: Any = (),
    body: bytes | None = None,
    port: int = 443,
    tls: bool = True,
    sni: str | None = "",
    address: str | None = None,
    on: Any = None,
) -> dict[str, Any]:
    """Make one HTTP/1.1 request; return its status, headers and body, or the error."""
    try:
        s = on or connect(name, port, tls, sni, address)
        standard = port == (443 if tls else 80)
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {host if host is not None else name if standard else f'{name}:{port}'}",
        ]
        lines += [f"{key}: {value}" for key, value in headers]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        s.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        response = http.client.HTTPResponse(s, method=method)
        response.begin()
        data = response.read()
        result: dict[str, Any] = {
            "status": response.status,
            "headers": {k.lower(): v for k, v in response.getheaders()},
        }
        try:
            result["json"] = json.loads(data)
        except ValueError:
            result["text"] = data.decode("latin-1")
        return result
    except (OSError, http.client.HTTPException) as error:
        return {"error": type(error).__name__, "text": str(error)}


def show(value: object) -> None:
    """Print a result for the test to read."""
    sys.stdout.write(json.dumps(value) + "\n")
