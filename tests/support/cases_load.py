"""One guest takes all it can: handshakes, streams, connections, names. B is served meanwhile (EGRESS-C1, EGRESS-H1)."""

from tests.support import floods
from tests.support.cases import case
from tests.support.internet import CDN
from tests.support.range import Range

from space.host import command
from space.net import nft

_BOUND_MIB = 400
"""More than the egress proxy ever needs here (under 120 MiB), less than one flood took of the first design."""

_MUTED = 'comment "muted"'


@case("EGRESS-C1", "TLS handshakes with names made up one by one", "B's request, the proxy's memory, counter of muting")
async def names_by_handshake(r: Range) -> None:
    """C1: 1,024 of them switched off egress for the whole host, for good. M3: who wastes too many is muted."""
    before = await r.counted(r.gateway, _MUTED)
    async with r.nothing_leaves():
        done, alerts, refused = await r.run(r.a, f"SIZE = 3000; ENOUGH = 20\n{floods.HELLOS}", timeout_s=180)
    assert await r.counted(r.gateway, _MUTED) > before
    assert alerts >= (done - refused) * 0.4, (
        done,
        alerts,
        refused,
    )  # names that nobody may reach: an alert, not silence
    assert (await r.fetch(r.b, "allowed.test", "/public/after"))["status"] == 200
    assert r.rss_mib("egress") < _BOUND_MIB
    await r.heard_again(r.a)
    assert (await r.fetch(r.a, "allowed.test", "/public/after"))["status"] == 200


@case(
    "EGRESS-H1", "slow streams, half-open handshakes and half headers, hundreds of them", "B's request, sockets, memory"
)
async def slow_streams(r: Range) -> None:
    """H1: 2,200 streams took every request of the others."""
    lines = """
import time
def get(stream): return h2_headers(stream, [(":method", "GET"), (":scheme", "https"), (":authority", "allowed.test"),
                                            (":path", "/public/slow")])
kept = []
for _ in range(8):
    s = connect("allowed.test", alpn=["h2"])
    s.sendall(H2_START + b"".join(get(1 + 2 * n) for n in range(90)))
    kept.append(s)
to = address_of("allowed.test")
for n in range(200):
    s = socket.socket(); s.settimeout(5)
    try:
        s.connect((to, 443 if n % 2 else 80))
        s.sendall(client_hello("allowed.test") if n % 2 else b"GET /public/x HTTP/1.1\\r\\nHost: allo")
    except OSError: time.sleep(0.02)
    kept.append(s)
print("held", flush=True)
time.sleep(60)
"""
    async with r.running(r.a, lines) as output:
        assert await output.line(120) == "held"
        for _ in range(3):
            assert (await r.fetch(r.b, "allowed.test", "/public/meanwhile"))["status"] == 200
        assert await r.sockets(r.slot(r.a).address) <= nft.CONNECTIONS + 50
        assert r.rss_mib("egress") < _BOUND_MIB


@case("EGRESS-H1-syn", "20,000 SYN, answered by nobody", "connection tables, B's request, counter at the tap")
async def syn_flood(r: Range) -> None:
    rule = "limit rate over 200/second burst 400 packets"
    before = await r.counted(r.slot_path(r.a), rule)
    await r.run(
        r.a,
        """
show(frames(tcp(f"198.18.{n % 4}.{n % 250 + 1}", 443, sport=1024 + n % 60000) for n in range(20000)))
""",
        timeout_s=120,
    )
    assert await r.counted(r.slot_path(r.a), rule) > before + 1000
    for place in (r.slot_path(r.a), r.gateway):
        tracked = await command.run("cat", "/proc/sys/net/netfilter/nf_conntrack_count", netns=place)
        assert int(tracked.stdout) < 12_000, tracked.stdout
    assert (await r.fetch(r.b, "allowed.test", "/public/meanwhile"))["status"] == 200


@case("EGRESS-H1-connections", "as many open connections as the guest can make", "the gateway's sockets, B's request")
async def connections(r: Range) -> None:
    lines = """
import time
kept, refused = [], 0
to = address_of("allowed.test")
until = time.monotonic() + 40
while refused < 20 and time.monotonic() < until:
    s = socket.socket(); s.settimeout(3)
    try: s.connect((to, 80)); kept.append(s)
    except ConnectionRefusedError: refused += 1
    except OSError: time.sleep(0.05)
    if len(kept) % 50 == 0: time.sleep(0.2)
print(len(kept), refused, flush=True)
time.sleep(30)
"""
    async with r.running(r.a, lines) as output:
        opened, refused = map(int, (await output.line(90)).split())
        assert refused >= 20, (opened, refused)
        assert opened <= nft.CONNECTIONS + 50
        assert await r.sockets(r.slot(r.a).address) <= nft.CONNECTIONS + 50
        assert (await r.fetch(r.b, "allowed.test", "/public/meanwhile"))["status"] == 200


@case("D-05-budget", "names under an allowed wildcard without end", "addresses given, answers to B")
async def names_without_end(r: Range) -> None:
    """Also EGRESS-M3: what a guest can make us keep is bounded; see the gateway's budget of names."""
    async with r.nothing_leaves(CDN):
        out = await r.run(
            r.a,
            """
import collections, time
found = collections.Counter()
for n in range(1500):
    answer = lookup(f"n{n}.wild.allowed.test")
    found[answer[0] if answer else "none"] += 1
show(found)
""",
            timeout_s=180,
        )
    assert sum(out.values()) == 1500, out
    assert out.get("5"), "new names are told a few at a time"
    assert (await r.fetch(r.b, "allowed.test", "/public/meanwhile"))["status"] == 200
