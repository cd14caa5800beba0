"""What passes a network namespace's links, as JSON lines: `packet_log.py LINK_PREFIX FILE`, run as root inside it.

Of TCP only what opens a connection is kept; of everything else, all. `way` is `in` for what came over the link to this
namespace. Prints `ready` when it listens.
"""

import json
import os
import socket
import struct
import sys
from pathlib import Path

PACKET_OUTGOING, ETH_P_ALL, SYN, ACK = 4, 3, 2, 16


def facts(frame: bytes) -> dict[str, object] | None:
    """Return what is to be kept of a frame, None for nothing."""
    kind = struct.unpack_from("!H", frame, 12)[0]
    if kind != 0x0800:
        return {"protocol": f"ethertype {kind:#06x}"}
    header = (frame[14] & 15) * 4
    protocol, offset = frame[23], 14 + header
    told: dict[str, object] = {
        "protocol": {1: "icmp", 6: "tcp", 17: "udp"}.get(protocol, str(protocol)),
        "source": socket.inet_ntoa(frame[26:30]),
        "target": socket.inet_ntoa(frame[30:34]),
    }
    if protocol in (6, 17) and len(frame) >= offset + 4:
        told["port"] = struct.unpack_from("!H", frame, offset + 2)[0]
        if protocol == 6 and frame[offset + 13] & (SYN | ACK) != SYN:
            return None
    return told


def main() -> None:
    """Listen until killed."""
    prefix, file = sys.argv[1:]
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    with Path(file).open("a") as log:
        os.write(1, b"ready\n")
        while True:
            frame, (link, _, way, *_) = tap.recvfrom(200)
            told = facts(frame) if link.startswith(prefix) else None
            if told is not None:
                log.write(json.dumps(told | {"way": "out" if way == PACKET_OUTGOING else "in"}) + "\n")
                log.flush()


main()
