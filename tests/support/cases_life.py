"""What changes while traffic flows: policies, processes that die, copies of a sandbox (EGRESS-H7, EGRESS-M10, C-19)."""

import json

from tests.support.cases import case
from tests.support.internet import CDN, EVIL
from tests.support.range import CANARY, POLICY, Range

_STREAM = """
import time
s = connect("allowed.test")
s.sendall(b"GET /public/slow HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n")
s.recv(100)
print("flows", flush=True)
s.settimeout(20)
try:
    while s.recv(65536): pass
    print("ended", flush=True)
except TimeoutError: print("still there", flush=True)
except OSError: print("ended", flush=True)
"""
_END = """
try: print('ended' if s.recv(10) == b'' else 'answered', flush=True)
except TimeoutError: print('still there', flush=True)
except OSError: print('ended', flush=True)
"""
_FOREVER = POLICY | {"allow": [{"host": "allowed.test"}, *POLICY["allow"][1:]]}


@case(
    "EGRESS-H7",
    "a download, an upload and a relayed connection go on after the policy was tightened",
    "sockets, servers",
)
async def tightened(r: Range) -> None:
    """H7: Envoy asks once for a request, and has nothing to end one connection by."""
    wide = {
        "allow": [
            {"host": "allowed.test"},
            {"host": "tls13.test"},
            {"host": "raw.test", "protocol": "tcp", "ports": [2222]},
        ]
    }
    await r.allow(r.a, wide)
    kept = (
        "s = connect('tls13.test')\ns.sendall(b'GET /slow HTTP/1.1\\r\\nHost: tls13.test\\r\\n\\r\\n')\n"
        "s.recv(100)\nprint('flows', flush=True)\nwhile s.recv(65536): print('still', flush=True)"
    )
    upload = (
        "s = connect('allowed.test')\ns.sendall(b'PUT /upload HTTP/1.1\\r\\nHost: allowed.test\\r\\n"
        "Content-Length: 100000000\\r\\n\\r\\n' + bytes(10))\nprint('flows', flush=True)\ns.settimeout(20)\n"
        f"{_END}"
    )
    raw = (
        "s = socket.create_connection((address_of('raw.test'), 2222), 5)\ns.recv(20)\nprint('flows', flush=True)\n"
        f"s.settimeout(20)\n{_END}"
    )
    try:
        async with (
            r.flowing(r.a, _STREAM.replace("/public/slow", "/slow")) as download,
            r.flowing(r.a, upload) as sending,
            r.flowing(r.a, raw) as relayed,
            r.flowing(r.a, kept) as allowed,
        ):
            await r.allow(r.a, {"allow": [{"host": "tls13.test"}]})
            for output in (download, sending, relayed):
                said = await output.line(30)
                assert said == "ended", said
            for _ in range(100):  # more than was waiting to be read: what is still allowed goes on
                assert await allowed.line(30) == "still"
    finally:
        await r.allow(r.a, POLICY)
    await r.control()


@case("EGRESS-I9", "traffic while the gateway, the egress proxy, or both are dead", "packets, requests that arrive")
async def nobody_decides(r: Range) -> None:
    """I9: any part gone is a refusal; after its return the policy holds before the first byte."""
    for dead in (("gateway",), ("egress",), ("gateway", "egress")):
        pids = {name: r.space.daemon_pid(name) for name in dead}
        lines = """
import contextlib, time
with contextlib.suppress(OSError): os.remove("/run/over")
to = address_of("allowed.test")
print("begins", flush=True)
out, until = [], time.monotonic() + 60
while time.monotonic() < until and not os.path.exists("/run/over"):
    out += [fetch("denied.test", "/x", address="198.18.0.1").get("status"),
            fetch("allowed.test", "/secret", address=to).get("status"),
            fetch("allowed.test", "/public/x", address=to, host="denied.test").get("status")]
show(out)
"""
        async with r.nothing_leaves(EVIL, names=("denied.test",)):
            before = r.arrived(("allowed.test",))
            async with r.running(r.a, lines) as output:
                assert await output.line() == "begins"
                for _ in range(2):
                    await r.kill(*dead)
                await r.until_run(r.a, ["touch", "/run/over"])
                refused = json.loads(await output.line(120))
                assert len(refused) >= 3, refused
                assert 200 not in refused, dead
            assert r.arrived(("allowed.test",)) == before
        assert all(r.space.daemon_pid(name) != pid for name, pid in pids.items())
        await r.until_allowed(r.a)
        await r.until_allowed(r.b)


@case("C-19", "a fork uses what its parent may and has: connections, names, the credential", "requests that arrive")
async def fork(r: Range) -> None:
    """Also EGRESS-M10: an old connection ends aloud, and the child's traffic is the child's."""
    lines = """
import time
s = connect("allowed.test")
print(fetch("allowed.test", "/public/before", on=s)["status"], flush=True)
out = None
while True:
    time.sleep(0.2)
    answer = fetch("allowed.test", "/public/kept", on=s)
    with open("/run/kept", "a") as f: f.write(str(answer.get("status") or answer.get("error")) + "\\n")
    if "error" in answer: break
"""
    async with r.running(r.a, lines) as output:
        assert await output.line() == "200"
        answer = await r.space.http.post(f"/v1/sandboxes/{r.a}/fork", json={"count": 1})
        assert answer.is_success, answer.text
        child = answer.json()["results"][0]["sandbox"]["id"]
        try:
            before = r.net.canaries(CANARY)["internet.log"]
            out = await r.run(
                child,
                """
import time
until = time.monotonic() + 30
while time.monotonic() < until:
    with open("/run/kept") as f: said = f.read().split()
    if said and not said[-1].isdigit(): break
    time.sleep(0.2)
show([said[-1:], fetch("bound.test", "/api/x").get("status"), fetch("denied.test", address="198.18.0.1").get("status")])
""",
            )
            assert out[0], out
            assert not out[0][0].isdigit(), out
            assert out[1] == 200, "what its parent may is its own; the credential is not, and none is waited for"
            assert out[2] is None, out
            assert r.net.canaries(CANARY)["internet.log"] == before
        finally:
            await r.space.delete(child)
    await r.control()


@case("EGRESS-C4-restore", "a connection from before a suspension, after the restore", "sockets, packets")
async def restored(r: Range) -> None:
    slept = await r.make(_FOREVER)
    try:
        async with r.running(slept, _STREAM) as output:
            assert await output.line() == "flows"
            address = r.slot(slept).address
            answer = await r.space.http.post(f"/v1/sandboxes/{slept}/suspend", json={})
            assert answer.is_success, answer.text
            assert await r.sockets(address) == 0
        async with r.nothing_leaves(address):
            answer = await r.space.http.post(f"/v1/sandboxes/{slept}/restore", json={})
            assert answer.is_success, answer.text
            out = await r.run(
                slept,
                "show([fetch('allowed.test', '/public/x').get('status'),"
                " fetch('denied.test', address='198.18.0.1').get('status'), dial([('203.0.113.20', 443)])])",
            )
        assert out == [200, None, ["ECONNREFUSED"]], out
        assert r.slot(slept).address != address
        assert CDN
    finally:
        await r.space.delete(slept)
