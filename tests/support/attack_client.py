"""What a hostile root user of a guest sends, as functions for the lines that a test runs in the guest.

Raw frames and packets, handshakes without a key, HTTP/2 by hand. Standard library only.
"""

import contextlib
import errno
import os
import select
import socket
import struct
import time
from typing import Any

GUEST, GATEWAY = "169.254.0.21", "169.254.0.22"
GATEWAY_MAC = bytes.fromhex("0600a9fe0016")
SYN, RST = 2, 4


def own_mac() -> bytes:
    """Return the address of the guest's card."""
    with open("/sys/class/net/eth0/address") as file:  # noqa: PTH123 - as a guest's program would
        return bytes.fromhex(file.read().strip().replace(":", ""))


def checksum(data: bytes) -> int:
    """Return the Internet checksum of some bytes."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip(target: str, protocol: int, payload: bytes, source: str = GUEST, fragment: int = 0, ident: int = 1) -> bytes:
    """Return an IPv4 packet."""
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), ident, fragment, 64, protocol, 0) + ends
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def tcp(target: str, port: int, flags: int = SYN, source: str = GUEST, sport: int = 40000, data: bytes = b"") -> bytes:
    """Return a TCP segment as a packet."""
    head = struct.pack("!HHIIBBHHH", sport, port, 1000, 1000, 0x50, flags, 1024, 0, 0) + data
    ends = socket.inet_aton(source) + socket.inet_aton(target) + struct.pack("!BBH", 0, 6, len(head))
    head = head[:16] + struct.pack("!H", checksum(ends + head)) + head[18:]
    return ip(target, 6, head, source)


def udp(target: str, port: int, data: bytes, source: str = GUEST, sport: int = 40000) -> bytes:
    """Return a UDP datagram as a packet, without a checksum."""
    return ip(target, 17, struct.pack("!HHHH", sport, port, 8 + len(data), 0) + data, source)


def frames(packets: Any, kind: int = 0x0800, mac: bytes | None = None, to: bytes = GATEWAY_MAC) -> int:
    """Put packets on the wire past the guest's own network stack; return how many."""
    count = 0
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as card:
        card.bind(("eth0", kind))
        head = to + (mac or own_mac()) + struct.pack("!H", kind)
        for packet in packets:
            card.send(head + packet)
            count += 1
    return count


def replies(seconds: float) -> list[list[Any]]:
    """Return [source, protocol] of the packets that come from the gateway's side for so long."""
    found = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as card:
        card.bind(("eth0", 3))
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not select.select([card], [], [], left)[0]:
                break
            frame = card.recv(2000)
            if frame[6:12] == GATEWAY_MAC and frame[12:14] == b"\x08\0":
                found.append([socket.inet_ntoa(frame[26:30]), frame[23]])
    return found


def dial(targets: Any, seconds: float = 2.0) -> list[str]:
    """Try TCP connections to (address, port) at once; return `open`, or the error's name, for each."""
    with contextlib.ExitStack() as stack:
        out, waiting = [], {}
        for number, target in enumerate(targets):
            made = stack.enter_context(socket.socket())
            made.setblocking(False)
            error = made.connect_ex(tuple(target))
            out.append("TimeoutError" if error == errno.EINPROGRESS else errno.errorcode[error])
            if error == errno.EINPROGRESS:
                waiting[number] = made
        until = time.monotonic() + seconds
        while waiting and (left := until - time.monotonic()) > 0:
            _, ready, _ = select.select([], list(waiting.values()), [], left)
            for number, made in list(waiting.items()):
                if made in ready:
                    error = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    out[number] = errno.errorcode[error] if error else "open"
                    del waiting[number]
        return out


def client_hello(name: str) -> bytes:
    """Return the first message of a TLS handshake with this name, as a client of TLS 1.3 sends it."""
    server = struct.pack("!BH", 0, len(name)) + name.encode("latin-1")
    extensions = [
        (0, struct.pack("!H", len(server)) + server),
        (10, bytes.fromhex("0002001d")),
        (13, bytes.fromhex("000a040308040401050306 03".replace(" ", ""))),
        (43, bytes.fromhex("0403040303")),
        (51, struct.pack("!HHH", 36, 29, 32) + os.urandom(32)),
    ]
    packed = b"".join(struct.pack("!HH", kind, len(data)) + data for kind, data in extensions)
    suites = bytes.fromhex("130113021303c02bc02f")
    body = b"\x03\x03" + os.urandom(32) + b"\x20" + os.urandom(32)
    body += struct.pack("!H", len(suites)) + suites + b"\x01\0" + struct.pack("!H", len(packed)) + packed
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack("!H", len(message)) + message


def h2_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame of HTTP/2 (RFC 9113)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def h2_headers(stream: int, fields: Any, end: bool = True) -> bytes:
    """Return a HEADERS frame; every field is a literal, so that nothing has to be remembered (RFC 7541, 6.2.2)."""

    def text(value: str) -> bytes:
        data = value.encode("latin-1")
        return (bytes([len(data)]) if len(data) < 127 else bytes([127, len(data) - 127])) + data

    block = b"".join(b"\0" + text(name) + text(value) for name, value in fields)
    return h2_frame(1, 4 | (1 if end else 0), stream, block)


H2_START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + h2_frame(4, 0, 0)


def h2_answers(connection: Any, streams: Any, seconds: float = 10) -> dict[int, Any]:
    """Read until each stream has ended; return the first byte of its headers (an indexed status), or its reset."""
    found: dict[int, Any] = {}
    data = b""
    connection.settimeout(seconds)
    try:
        while set(streams) - set(found):
            part = connection.recv(65536)
            if not part:
                break
            data += part
            while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
                size, kind, stream = int.from_bytes(data[:3], "big"), data[3], int.from_bytes(data[5:9], "big")
                payload, data = data[9 : 9 + size], data[9 + size :]
                if kind == 1 and stream not in found:
                    found[stream] = h2_status(payload)
                elif kind == 3:
                    found.setdefault(stream, "reset")
                elif kind == 7:
                    found.setdefault(0, "goaway")
    except OSError:
        pass
    return found


def h2_status(block: bytes) -> Any:
    """Return the status that a header block begins with."""
    while block and block[0] & 0xE0 == 0x20:  # a change of the table's size
        block = block[1:]
    indexed = {0x88: 200, 0x89: 204, 0x8A: 206, 0x8B: 304, 0x8C: 400, 0x8D: 404, 0x8E: 500}
    if block[0] in indexed:
        return indexed[block[0]]
    value = block[2 : 2 + (block[1] & 0x7F)]
    return f"huffman {value.hex()}" if block[1] & 0x80 else int(value)
