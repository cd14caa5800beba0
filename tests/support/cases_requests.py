"""Attacks in the handshake and in the request: whose name counts, what is judged, what arrives (catalogue 1D, 1E)."""

from tests.support.cases import case
from tests.support.internet import CDN, EVIL
from tests.support.range import POLICY, Range

_ODD_PATHS = (
    "/public/../secret/x", "/public/..%2fsecret/x", "/public/%2e%2e/secret/x", "/public/..;/secret/x",
    "/public/%252e%252e/secret", "/public//secret", "/public/%5c..%5csecret", "/public/x%00", "/public/%c0%ae/x",
    "//public/x", "/%2e/secret", "/public/a;b/c", "/public/%2f..%2fsecret", "*", "/public\\..\\secret",
)  # fmt: skip


@case(
    "T-01",
    "TLS without a name, with an address as name, with a NUL in it",
    "requests that arrive, packets",
)
async def no_name(r: Range) -> None:
    """Also EGRESS-H4."""
    async with r.nothing_leaves(names=("", "203.0.113.20")):
        out = await r.run(
            r.a,
            """
def hello(name):
    with socket.create_connection((address_of("allowed.test"), 443), 5) as s:
        s.sendall(client_hello(name)); s.settimeout(8)
        try: got = s.recv(100)
        except OSError: return "silence"
        return got[0] if got else "closed"
show([fetch("allowed.test", "/public/x", sni=None).get("status"),
      [hello(name) for name in ("203.0.113.20", ".no-sni", "no-sni", "allowed.test\\0.evil.test", "*.allowed.test")],
      fetch("allowed.test", "/public/x", port=443, tls=False).get("status")])
""",
        )
    assert out[0] is None, out
    assert not {22} & set(out[1]), out  # no ServerHello
    assert out[2] != 200, out


@case("T-02", "an allowed name in the handshake, sent to the attacker's address", "packets, sink", core=True)
async def allowed_name_elsewhere(r: Range) -> None:
    async with r.nothing_leaves(EVIL):
        out = await r.run(
            r.a,
            f"show([fetch('allowed.test', '/public/x', address=a).get('status') for a in"
            f" ({EVIL!r}, '198.18.200.200', address_of('tls13.test'))])",
        )
    assert not {200} & set(out), out
    await r.control()


@case(
    "T-03", "one name in the handshake, another in the request, each way round, on both chains", "requests", core=True
)
async def fronting(r: Range) -> None:
    """Also H-01, H-02, H-06, H-10 and EGRESS-C2: the twin has the allowed name's address."""
    async with r.nothing_leaves(EVIL, names=("denied.test", "evil.test")):
        out = await r.run(
            r.a,
            """
keep = connect("allowed.test")
show({
    "host": fetch("allowed.test", "/public/x", host="denied.test").get("status"),
    "sni": fetch("allowed.test", "/public/x", sni="denied.test").get("status"),
    "both": fetch("allowed.test", "/public/x", sni="denied.test", host="denied.test").get("status"),
    "another's sni": fetch("tls13.test", "/files/small", sni="allowed.test").get("status"),
    "plain": fetch("allowed.test", "/public/x", host="denied.test", port=80, tls=False).get("status"),
    "absolute": fetch("allowed.test", "https://denied.test/public/x").get("status"),
    "absolute plain": fetch("allowed.test", "http://denied.test/public/x", port=80, tls=False).get("status"),
    "connect": fetch("allowed.test", "denied.test:443", method="CONNECT").get("status"),
    "two hosts": fetch("allowed.test", "/public/x", headers=[("Host", "denied.test")]).get("status"),
    "kept": [fetch("allowed.test", "/public/1", on=keep).get("status"),
             fetch("allowed.test", "/public/2", host="denied.test", on=keep).get("status")],
})
""",
        )
    assert out.pop("kept") == [200, 421], out
    assert not {200} & set(out.values()), out


@case("T-05", "the twin of an allowed name, at its address", "requests that arrive", core=True)
async def twin(r: Range) -> None:
    async with r.nothing_leaves(CDN, names=("denied.test",)):
        out = await r.run(
            r.a,
            f"show([fetch('denied.test', '/public/x', address=a).get('status') for a in"
            f" ({CDN!r}, address_of('allowed.test'))])",
        )
    assert not {200} & set(out), out


@case("T-08", "old versions of TLS, and a server that speaks only the newest", "what is negotiated")
async def versions(r: Range) -> None:
    """Also EGRESS-M7."""
    out = await r.run(
        r.a,
        """
def at(version):
    made = context.__wrapped__(); made.set_ciphers("ALL:@SECLEVEL=0")
    made.minimum_version, made.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, version
    made.minimum_version = version
    try:
        with made.wrap_socket(socket.create_connection((address_of("allowed.test"), 443), 5),
                              server_hostname="allowed.test") as s: return s.version()
    except (OSError, ValueError) as error: return type(error).__name__
import warnings; warnings.simplefilter("ignore")
show([at(ssl.TLSVersion.TLSv1), at(ssl.TLSVersion.TLSv1_1), at(ssl.TLSVersion.TLSv1_2), at(ssl.TLSVersion.TLSv1_3),
      fetch("tls13.test", "/files/small").get("status")])
""",
    )
    assert out[2:] == ["TLSv1.2", "TLSv1.3", 200], out
    assert not {"TLSv1", "TLSv1.1"} & set(out[:2]), out


@case(
    "T-10",
    "servers with an old, a foreign, another's and a self-made certificate",
    "requests that arrive",
)
async def bad_certificates(r: Range) -> None:
    """Also T-11."""
    names = tuple(f"{kind}.bound.test" for kind in ("expired", "self", "wrong", "untrusted"))
    async with r.nothing_leaves(names=names):
        out = await r.run(r.a, f"show([fetch(name)['status'] for name in {names!r}])")
    assert out == [502] * 4, out
    await r.control()


@case("H-04", "requests with two lengths, or an odd one: smuggling one request in another", "requests that arrive")
async def smuggling(r: Range) -> None:
    async with r.nothing_leaves():
        before = r.arrived(("allowed.test",))
        out = await r.run(
            r.a,
            r"""
inner = "GET /secret HTTP/1.1\r\nHost: allowed.test\r\n\r\n"
frames_ = [
    f"Content-Length: {len(inner)}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
    f"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n{inner}",
    f"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n{inner}",
    f"Content-Length: 0\r\nContent-Length: {len(inner)}\r\n\r\n{inner}",
    f"Content-Length: +{len(inner)}\r\n\r\n{inner}",
    f"Content-Length : {len(inner)}\r\n\r\n{inner}",
    f"Transfer-Encoding: chunked\n\n0\n\n{inner}",
    f"X: y\n\n{inner}",
]
import time
sent = []
for tls, port in ((True, 443), (False, 80)):
    for frame in frames_:
        s = connect("allowed.test", port, tls)
        s.sendall(f"GET /public/outer HTTP/1.1\r\nHost: allowed.test\r\n{frame}".encode("latin-1"))
        sent.append(s)
out = []
until = time.monotonic() + 4
for s in sent:  # those that stay open all wait for what else comes at the same time
    got = b""
    try:
        while True:
            s.settimeout(max(0.05, until - time.monotonic()))
            part = s.recv(65536)
            if not part: break
            got += part
    except OSError: pass
    out.append(got.count(b"HTTP/1.1 200"))
show(out)
""",
        )
    arrived = [line["path"] for line in r.net.seen("web")[-64:] if line["sni"] == "allowed.test"]
    assert "/secret" not in arrived
    assert r.arrived(("allowed.test",)) - before == sum(out), out
    await r.control()


@case("H-08", "methods that are not allowed, in every spelling, and headers that change one", "requests that arrive")
async def methods(r: Range) -> None:
    async with r.nothing_leaves(names=("tls13.test",)):
        before = r.arrived(("allowed.test",))
        out = await r.run(
            r.a,
            """
forged = [("X-HTTP-Method-Override", "DELETE"), ("X-HTTP-Method", "DELETE"), ("X-Method-Override", "DELETE")]
names = ("POST", "DELETE", "get", "TRACE", "TRACK", "FOO", "PRI", "GETT")
show([[fetch("allowed.test", "/public/x", method=m, port=p, tls=p == 443).get("status")
       for m in names for p in (443, 80)],
      fetch("allowed.test", "/public/x", headers=forged)["json"]["headers"],
      [fetch("tls13.test", "/files/small", method=m).get("status") for m in ("TRACE", "TRACK", "CONNECT")]])
""",
        )
    assert not {200} & set(out[0]), out
    assert [name.lower() for name, _ in out[1]] == ["host"], out
    assert not {200} & set(out[2]), "where a rule has no methods, those that may leave do"
    assert r.arrived(("allowed.test",)) == before + 1


@case("H-09", "spellings of a path that lead out of the allowed one", "requests that arrive", core=True)
async def paths(r: Range) -> None:
    """Also EGRESS-H3, on both chains."""
    before = r.arrived(("allowed.test",))
    lines = (
        f"show([fetch('allowed.test', path, port=port, tls=port == 443).get('status')"
        f" for path in {_ODD_PATHS!r} for port in (443, 80)])"
    )
    out = await r.run(r.a, lines)
    assert not {200} & set(out), out
    assert r.arrived(("allowed.test",)) == before
    await r.control()


@case("H-12", "WebSocket, h2c and made-up upgrades where no rule says so", "requests that arrive")
async def upgrades(r: Range) -> None:
    """Also H-14 and EGRESS-H8."""
    out = await r.run(
        r.a,
        """
def upgrade(kind, port):
    extra = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", kind), ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
             ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="), ("Sec-WebSocket-Version", "13"),
             ("X-Space-Upgrade", "websocket")]
    return fetch("allowed.test", "/public/ws", headers=extra, port=port, tls=port == 443).get("status")
show([upgrade(kind, port) for kind in ("websocket", "h2c", "tcp", "websocket, tcp") for port in (443, 80)])
""",
    )
    assert 101 not in out, out
    await r.control()


@case("H-15", "HTTP/2: another name in one stream of a connection", "requests that arrive", core=True)
async def streams(r: Range) -> None:
    async with r.nothing_leaves(names=("denied.test",)):
        out = await r.run(
            r.a,
            """
def get(stream, name, path, *more):
    fields = [(":method", "GET"), (":scheme", "https"), (":authority", name), (":path", path), *more]
    return h2_headers(stream, fields)
s = connect("allowed.test", alpn=["h2"])
s.sendall(H2_START + get(1, "allowed.test", "/public/1") + get(3, "denied.test", "/public/2")
          + get(5, "allowed.test", "/secret") + get(7, "allowed.test", "/public/3", ("host", "denied.test"))
          + get(9, "allowed.test", "/public/4"))
found = h2_answers(s, (1, 3, 5, 9))
show([s.selected_alpn_protocol(), [found.get(n) for n in (1, 3, 5, 9)]])
""",
        )
    assert out[0] == "h2"
    assert out[1][0] == 200, out
    assert 200 not in out[1][1:3], out
    assert out[1][3] == 200, out


@case("H-17", "a redirect to a denied name, to the metadata service, to another scheme", "requests, packets")
async def redirects(r: Range) -> None:
    async with r.nothing_leaves("169.254.169.254", EVIL, names=("evil.test", "denied.test")):
        out = await r.run(
            r.a,
            """
import subprocess
def follow(to):
    url = f"https://pypi.test/redirect?to={to}"
    argv = ["curl", "-sS", "-L", "-m", "10", "-o", "/dev/null", "-w", "%{http_code} %{num_redirects}", url]
    done = subprocess.run(argv, capture_output=True, text=True)
    return [done.returncode, done.stdout]
show([follow(to) for to in ("https://denied.test/", "http://169.254.169.254/latest/", "http://evil.test:4444/",
                            "https://allowed.test/public/x")])
""",
        )
    assert all(code != 0 for code, _ in out[:3]), out
    assert out[3] == [0, "200 1"], out


@case("H-20", "what an upstream says of HTTP/3", "what the guest gets")
async def alternatives(r: Range) -> None:
    await r.allow(r.a, {"allow": [{"host": "allowed.test"}]})
    try:
        answer = await r.fetch(r.a, "allowed.test", "/alt")
        assert answer["status"] == 200
        assert "alt-svc" not in answer["headers"]
    finally:
        await r.allow(r.a, POLICY)


@case(
    "EGRESS-C2",
    "the dial address in headers, and the plain chain towards B's agent",
    "packets, requests at B",
)
async def dial_address(r: Range) -> None:
    """C2: each missing or odd value of the decision fell back to what the guest had chosen."""
    target = f"{r.slot(r.b).address}:49983"
    async with r.nothing_leaves(EVIL, r.slot(r.b).address, "169.254.169.254"):
        out = await r.run(
            r.a,
            f"""
def forged(to): return [("x-envoy-original-dst-host", to), ("X-Envoy-Original-Dst-Host", to), ("x-space-dial", to)]
out = []
for to in ("{EVIL}:443", "{target}", "169.254.169.254:80", "999.1.1.1:443", "not-an-address", ""):
    for port in (443, 80):
        for path in ("/public/x", "/secret"):
            answer = fetch("allowed.test", path, headers=forged(to), port=port, tls=port == 443)
            out.append([path, answer.get("status"), (answer.get("json") or {{}}).get("local")])
show([out, fetch("allowed.test", "/v1/health", port=49983, tls=False, address="{r.slot(r.b).address}").get("status")])
""",
        )
    assert out[1] is None, out
    for path, status, local in out[0]:
        assert (status, local and local[0]) in ((200, CDN), (403, None)), out
        assert (status == 200) == (path == "/public/x"), out


@case("EGRESS-H2", "headers that say who the sandbox is", "the ledger of decisions")
async def forged_identity(r: Range) -> None:
    """H2: X-Forwarded-For booked A's bytes on B. Also L-01's half above the packets."""
    forged = [
        ("X-Forwarded-For", r.slot(r.b).address),
        ("X-Envoy-Original-Path", "/public/nice"),
        ("X-Envoy-Peer-Metadata", "x"),  # one that Envoy itself leaves alone
        ("X-Space-Sandbox", r.b),
        ("X-Forwarded-Host", "evil.test"),
    ]
    mark = f"/public/{r.slot(r.a).number}-forged"
    answer = await r.run(
        r.a, f"show(fetch('allowed.test', {mark!r}, headers=[*{forged!r}, ('X-Forwarded-Proto', 'http')]))"
    )
    assert answer["status"] == 200
    assert [name.lower() for name, _ in answer["json"]["headers"]] == ["host"], answer
    assert await r.decided(r.a, path=mark)
    assert not await r.decided(r.b, path=mark, wait=False)


@case("EGRESS-M3", "handshakes for names that only B may reach", "requests that arrive")
async def foreign_names(r: Range) -> None:
    """M3: whether a certificate exists can be found out; nothing else."""
    await r.allow(r.b, {"allow": [{"host": "git.test"}, {"host": "allowed.test"}]})
    await r.allow(r.a, {"allow": [{"host": "allowed.test"}]})
    try:
        await r.run(r.b, "show(fetch('git.test').get('status'))")
        async with r.nothing_leaves(names=("git.test",)):
            out = await r.run(
                r.a,
                "show([lookup('git.test'), fetch('git.test', address=address_of('allowed.test')).get('status'),"
                " fetch('git.test', address='198.18.77.7').get('status')])",
            )
        assert out[0] == [5, []], out
        assert 200 not in out[1:], out
    finally:
        await r.allow(r.a, POLICY)
        await r.restore_b()
