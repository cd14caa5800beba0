"""A server for tests of packet paths, run in the namespace it serves: `echo_server.py UID tcp|udp ADDRESS PORT ...`.

Each connection or datagram is answered with one line of JSON: who came, to which address it was sent before a redirect,
and where it arrived. Prints `ready` when all are listening.
"""

import json
import os
import selectors
import socket
import struct
import sys

SO_ORIGINAL_DST = 80


def original(connection: socket.socket) -> str:
    """Return the address that a redirected connection was made to."""
    try:
        port, address = struct.unpack("!2xH4s8x", connection.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
    except OSError:
        return ""
    return f"{socket.inet_ntoa(address)}:{port}"


def main() -> None:
    """Serve until killed."""
    uid, *rest = sys.argv[1:]
    with selectors.DefaultSelector() as selector:
        for kind, address, port in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
            made = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((address, int(port)))
            if kind == "tcp":
                made.listen(128)
            selector.register(made, selectors.EVENT_READ, kind)
        os.setuid(int(uid))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            for key, _ in selector.select():
                here = key.fileobj
                assert isinstance(here, socket.socket)
                if key.data == "udp":
                    _, peer = here.recvfrom(65535)
                    here.sendto(line(peer, "", here), peer)
                else:
                    connection, peer = here.accept()
                    with connection:
                        connection.sendall(line(peer, original(connection), connection))


def line(peer: tuple[str, int], wanted: str, here: socket.socket) -> bytes:
    """Return the answer."""
    name = here.getsockname()
    return json.dumps({"from": peer[0], "wanted": wanted, "at": f"{name[0]}:{name[1]}"}).encode() + b"\n"


main()
