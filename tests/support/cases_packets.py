"""Attacks with packets of one's own making: whose they are, which kinds pass, where they end (catalogue 1C)."""

import json
from pathlib import Path

from tests.support.cases import case
from tests.support.internet import CDN, EVIL
from tests.support.range import Range

from space.host import command
from space.net import slot

_SUPPORT = Path(__file__).parent


@case("L-01", "packets with B's address, and with the gateway's", "counter at the tap, B's record", core=True)
async def forged_sources(r: Range) -> None:
    other, near = r.slot(r.b).address, r.slot(r.a).gateway_address
    before = await r.counted(r.slot_path(r.a), "ip saddr != 169.254.0.21")
    async with r.nothing_leaves(EVIL, CDN):
        sent = await r.run(
            r.a,
            f"""
sources = ({other!r}, {near!r}, "169.254.0.22", "203.0.113.53", "127.0.0.1", "0.0.0.0")
show(frames(udp("169.254.0.22", 53, question("forged.wild.allowed.test"), source=s) for s in sources)
     + frames(tcp(to, port, source=s)
              for s in sources for to in ("198.18.0.5", {CDN!r}, {other!r}) for port in (443, 80)))
""",
        )
    assert await r.counted(r.slot_path(r.a), "ip saddr != 169.254.0.21") >= before + sent
    await r.control()


@case("L-02", "another card's address, the gateway's and B's", "whose policy applies")
async def forged_cards(r: Range) -> None:
    out = await r.run(
        r.a,
        """
def ask(mac):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind((GUEST, 45001)); s.settimeout(3)
        frames([udp(GATEWAY, 53, question("files.denied.test"), sport=45001)], mac=mac)
        try: return parse(s.recv(999))
        except OSError: return None
show([ask(mac) for mac in (GATEWAY_MAC, bytes.fromhex("020000000001"), b"\\xff" * 6)])
""",
    )
    assert all(answer in (None, [5, []]) for answer in out), out
    await r.control()


@case(
    "L-04",
    "ARP, router advertisements and DHCP that claim the gateway's place",
    "the slot's addresses, routes, neighbours",
)
async def forged_neighbours(r: Range) -> None:
    async def state() -> str:
        told = ""
        for what in ("address", "route", "neighbour"):
            done = await command.run("ip", "-oneline", what, "show", netns=r.slot_path(r.a))
            told += "\n".join(sorted(line for line in done.stdout.splitlines() if "169.254.0.21 dev tap0" not in line))
        return told

    before = await state()
    await r.run(
        r.a,
        """
mac = own_mac()
def arp(operation, sender, target):
    ends = mac + socket.inet_aton(sender) + b"\\xff" * 6 + socket.inet_aton(target)
    return struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + ends
frames((arp(op, ip_, "169.254.0.22") for op in (1, 2) for ip_ in ("169.254.0.22", "100.64.0.2", "203.0.113.1")),
       kind=0x0806, to=b"\\xff" * 6)
ra = bytes([134, 0, 0, 0, 64, 0, 7, 8]) + bytes(8)
v6 = struct.pack("!IHBB", 0x60000000, len(ra), 58, 255) + socket.inet_pton(socket.AF_INET6, "fe80::1")
frames([v6 + socket.inet_pton(socket.AF_INET6, "ff02::1") + ra], kind=0x86DD, to=bytes.fromhex("333300000001"))
frames([udp("255.255.255.255", 68, b"\\2\\1\\6\\0" + bytes(300), sport=67)], to=b"\\xff" * 6)
show(1)
""",
    )
    assert await state() == before
    await r.control()


@case(
    "L-07",
    "every other protocol over IP, to an allowed name's address and to the world",
    "packets, counter",
)
async def other_protocols(r: Range) -> None:
    """Also L-09: UDP other than to port 53, QUIC above all."""
    before = await r.counted(r.slot_path(r.a), 'comment "other"')
    async with r.nothing_leaves(CDN, EVIL):
        out = await r.run(
            r.a,
            f"""
to = (address_of("allowed.test"), "169.254.0.22", {CDN!r}, {EVIL!r})
n = frames(ip(t, p, b"x" * 40) for t in to for p in (1, 2, 4, 33, 41, 47, 50, 51, 89, 103, 112, 115, 132, 136, 255))
n += frames(udp(t, port, b"x" * 40) for t in to for port in (80, 123, 443, 3478, 8443, 51820))
show([n, replies(1)])
""",
        )
    assert [reply for reply in out[1] if reply[1] != 6] == [], out
    assert await r.counted(r.slot_path(r.a), 'comment "other"') >= before + out[0]
    await r.control()


@case("L-10", "fragments that hide the port, tiny and overlapping ones", "packets, counter")
async def fragments(r: Range) -> None:
    before = await r.counted(r.slot_path(r.a), "ip frag-off")
    async with r.nothing_leaves(CDN, EVIL):
        sent = await r.run(
            r.a,
            f"""
segment = tcp({EVIL!r}, 80)[20:]
more, out = 0x2000, 0
for to in ({EVIL!r}, {CDN!r}, "198.18.0.5"):
    out += frames([ip(to, 6, segment[:8], fragment=more, ident=9), ip(to, 6, segment[8:], fragment=1, ident=9),
                   ip(to, 6, segment, fragment=more, ident=10), ip(to, 6, segment[8:], fragment=1, ident=10),
                   ip(to, 17, b"x" * 24, fragment=more, ident=11), ip(to, 17, b"x" * 24, fragment=3, ident=11)])
show(out)
""",
        )
    assert await r.counted(r.slot_path(r.a), "ip frag-off") >= before + sent


@case(
    "L-12",
    "other ports of an allowed name, and its ports the wrong way round",
    "packets, requests that arrive",
)
async def other_ports(r: Range) -> None:
    """Also EGRESS-M5: raw ports are raw, and nothing else is."""
    async with r.nothing_leaves(names=("raw.test",)):
        before = len(r.net.seen("raw"))
        ports = (0, 21, 22, 25, 2222, 3306, 8080, 8443, 9999)
        packets = len(r.net.packets())
        out = await r.run(
            r.a,
            f"""
def talk(name, port, words):
    try:
        with socket.create_connection((address_of(name), port), 5) as s:
            s.settimeout(3); s.sendall(words); return s.recv(200).decode("latin-1")
    except OSError as error: return type(error).__name__
words = b"GET /public/x HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n"
show([[talk("allowed.test", port, words)[:12] for port in {ports!r}],
      fetch("allowed.test", "/public/x", port=8443).get("status"),
      fetch("raw.test", "/", port=443).get("status"), fetch("raw.test", "/", port=80, tls=False).get("status"),
      talk("raw.test", 22, b"x"), talk("raw.test", 2222, b"hello"),
      dial([("203.0.113.43", 2222), ("203.0.113.44", 2222), ("203.0.113.44", 443), ("203.0.113.45", 2222)])])
""",
        )
    assert not [answer for answer in out[0] if " 200" in answer], out
    assert out[1] != 200, out
    assert 200 not in out[2:4], out
    assert "220" not in out[4], out
    assert "220 ready" in out[5], out  # the control
    assert out[6] == ["ECONNREFUSED", "open", "ECONNREFUSED", "ECONNREFUSED"], out
    assert len(r.net.seen("raw")) >= before + 2
    wrong = [
        p for p in r.net.packets()[packets:] if p.get("target") == CDN and p.get("port") in (0, 22, 25, 2222, 9999)
    ]
    assert not wrong, wrong


@case("EGRESS-M10", "segments of a connection that is not there", "the reset that comes back")
async def foreign_segments(r: Range) -> None:
    """M10, C4: nothing but a SYN opens anything, and a program of another life learns it at once."""
    async with r.nothing_leaves(CDN, EVIL):
        out = await r.run(
            r.a,
            f"""
to = address_of("allowed.test")
card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); card.bind(("eth0", 3)); card.settimeout(3)
frames(tcp(t, 443, flags, sport=42000 + flags, data=b"x") for t in (to, {CDN!r}) for flags in (16, 18, 24, 1))
reset = set()
try:
    while len(reset) < 4:
        frame = card.recv(2000)
        flags = int.from_bytes(frame[36:38], "big") - 42000
        if frame[6:12] == GATEWAY_MAC and frame[23] == 6 and frame[47] & RST and 0 < flags < 99: reset.add(flags)
except TimeoutError: pass
show(sorted(reset))
""",
        )
    assert out == [1, 16, 18, 24], "which kinds of segments were answered by a reset"


@case("EGRESS-C4-stray", "what was for a former guest of the address, from the gateway's side", "what the guest sees")
async def stray_segments(r: Range) -> None:
    """C4: a new guest received the stream of the one before, since any segment was translated to it."""
    made, stray, begins = r.slot(r.a), 46884, 46885
    sending = (
        f"import os, socket, sys, time\nsys.path.insert(0, {str(_SUPPORT)!r}); sys.dont_write_bytecode = True\n"
        "import attack_client as a\n"
        "card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n"
        f"card.bind(({slot.link_name(made.number)!r}, 0x0800))\n"
        "ends = bytes.fromhex('060064400001060064400000') + b'\\x08\\x00'\n"
        f"to, source = {made.address!r}, {made.gateway_address!r}\n"
        "for flags in (0x18, 0x10, 0x11):\n"
        f" card.send(ends + a.tcp(to, {stray}, flags, source=source, sport=80, data=b'x'))\n"
        f"os.setuid({r.layout.ingress_uid})\ns = socket.socket(); s.settimeout(2)\n"
        f"try: s.connect(({made.address!r}, {begins}))\nexcept OSError: pass"
    )
    lines = f"""
card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); card.bind(("eth0", 3)); card.settimeout(20)
print("flows", flush=True)
found = []
while {begins} not in found:
    frame = card.recv(2000)
    if frame[6:12] == GATEWAY_MAC and frame[23] == 6: found.append(int.from_bytes(frame[36:38], "big"))
show(found)
"""
    async with r.flowing(r.a, lines) as output:
        await command.run("/usr/bin/python3", "-c", sending, netns=r.gateway)
        found = json.loads(await output.line())
    assert stray not in found, found
