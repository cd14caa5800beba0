"""Where a secret may be, and where it must not be (security catalogue 1F, EGRESS-H5, EGRESS-M1, EGRESS-M4)."""

import asyncio
import errno
import mmap
import os
from pathlib import Path

from tests.support.cases import case
from tests.support.deployment import vms
from tests.support.range import CANARY, POLICY, Range

from space.model.ids import new_id

MARK = "MARK-that-the-guest-does-know-93ab"


def holds(path: Path, text: str) -> bool:
    """Tell whether a file of any size has these bytes; holes of a sparse one are not read."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        end = 0
        while True:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return False  # nothing but a hole is left
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            if mapped.find(text.encode(), start, end) >= 0:
                return True


async def _use(r: Range) -> None:
    """Have A send a request with the secret, and see it arrive."""
    before = r.net.canaries(CANARY)["internet.log"]
    answer = await r.fetch(r.a, "bound.test", "/api/use")
    assert answer["status"] == 200, answer
    async with asyncio.timeout(10):
        while r.net.canaries(CANARY)["internet.log"] == before:
            await asyncio.sleep(0.02)


@case(
    "C-01",
    "searching the guest's memory, disk, environment and files, and what the host keeps of it",
    "grep on the host",
)
async def absence(r: Range) -> None:
    await _use(r)
    script = (
        # files of before the sandbox's beginning are the template's; the search of the whole disk is the host's
        f"echo {MARK} > /root/mark; sync;"
        f" find / -xdev -type f -newercm /opt/range/guest_client.py -print0 2>/dev/null"
        f" | xargs -0 -r grep -l -a '{CANARY[:12]}' 2>/dev/null | head;"
        f" grep -l -a '{CANARY[:12]}' /proc/*/environ /proc/*/cmdline 2>/dev/null | grep -v /self/ | head; true"
    )
    # the pattern itself is in the command's own line: it is looked for with a class, so that it does not match itself
    script = script.replace(CANARY[:12], f"[{CANARY[0]}]{CANARY[1:12]}")
    _, found = await r.shell(r.a, ["/bin/sh", "-c", script], 180)
    assert not found.strip(), found
    _, found = await r.shell(r.a, ["/bin/sh", "-c", script.replace(f"[{CANARY[0]}]{CANARY[1:12]}", MARK[:12])], 180)
    assert "/root/mark" in found, "the search finds what is there"
    vm = vms(r.space.data)[r.a]["vm"]
    memory, disk = r.layout.memory_file(vm), r.layout.vm_dir(vm) / "disk"
    marked = await asyncio.to_thread(lambda: [holds(memory, MARK), holds(disk, MARK)])
    assert marked == [True, True], "the search finds what is there"
    held = await asyncio.to_thread(lambda: [holds(memory, CANARY), holds(disk, CANARY)])
    assert held == [False, False]
    kept = [*r.layout.log_dir.rglob("*"), *(r.space.data / "worker").rglob("*"), *r.space.run_dir.rglob("*")]
    leaked = [path for path in kept if path.is_file() and holds(path, CANARY)]
    assert not leaked, leaked


@case(
    "C-04",
    "a server that repeats the credential: plain, compressed, in single bytes, in a header",
    "what the guest gets",
)
async def reflection(r: Range) -> None:
    """Also EGRESS-M4."""
    await _use(r)
    out = await r.run(
        r.a,
        """
out = {}
for how in ("plain", "gzip", "chunked", "header"):
    for more in ((), (("Accept-Encoding", "gzip, br"),), (("Range", "bytes=0-2000"),)):
        answer = fetch("bound.test", f"/reflect/{how}", headers=more)
        out[f"{how} {more}"] = [answer.get("status"), str(answer)]
show(out)
""",
    )
    for how, (status, text) in out.items():
        assert status in (200, 206, 502), (how, status)
        assert CANARY not in text, how
        assert CANARY[8:] not in text, how
    assert any(status == 200 for status, _ in out.values()), out


@case("C-05", "the credential towards other names, paths, methods, ports, and without TLS", "what arrives", core=True)
async def only_where_bound(r: Range) -> None:
    """Also C-02, C-11 and EGRESS-M1."""
    await _use(r)
    before = r.net.canaries(CANARY)["internet.log"]
    out = await r.run(
        r.a,
        """
bound, allowed = address_of("bound.test"), address_of("allowed.test")
show([fetch("bound.test", "/other").get("status"), fetch("bound.test", "/api/../other").get("status"),
      fetch("bound.test", "/api/x", method="PUT").get("status"), fetch("bound.test", "/api/x", port=8443).get("status"),
      fetch("bound.test", "/api/x", port=80, tls=False).get("status"),
      fetch("bound.test", "/api/x", address=allowed).get("status"),
      fetch("allowed.test", "/api/x", host="bound.test").get("status"),
      fetch("bound.test", "/api/x", host="allowed.test").get("status"),
      fetch("expired.bound.test", "/api/x").get("status"), fetch("wrong.bound.test", "/api/x").get("status")])
""",
    )
    assert 200 not in out, out
    await r.control()
    assert r.net.canaries(CANARY)["internet.log"] == before


@case("H-21", "the guest's own credential on a bound host, in every spelling of the header", "what arrives", core=True)
async def own_credential(r: Range) -> None:
    out = await r.run(
        r.a,
        """
own = [("Authorization", "Bearer mine"), ("AUTHORIZATION", "Bearer mine"), ("authorization", "Basic eDp5"),
       ("Connection", "authorization")]
show(fetch("bound.test", "/api/own", headers=own)["status"])
""",
    )
    assert out == 200
    arrived = [line["authorization"] for line in r.net.seen("web") if line["path"] == "/api/own"]
    assert arrived
    assert set(arrived) == {f"Bearer {CANARY}"}, arrived


@case("C-15", "placeholders where nothing binds them", "what arrives")
async def placeholders(r: Range) -> None:
    await _use(r)
    before = r.net.canaries(CANARY)["internet.log"]
    out = await r.run(
        r.a,
        """
mark = "${secrets.KEY}"
show([fetch("allowed.test", "/public/x", headers=[("X-Key", mark)]).get("status"),
      fetch("pypi.test", "/simple/", headers=[("Authorization", mark)]).get("status"),
      fetch("bound.test", "/api/x", headers=[("X-Other", mark)]).get("status"),
      fetch("bound.test", "/api/x", method="POST", body=mark.encode())["json"]["body"]])
""",
    )
    assert out[:3] == [403, 403, 403], out
    assert out[3] == "${secrets.KEY}", out
    assert r.net.canaries(CANARY)["internet.log"] <= before + 1 + 1  # the one request that is bound, in two records


@case(
    "C-20", "a token endpoint that takes each refresh token once; the gateway is killed", "what the endpoint is shown"
)
async def refresh_tokens(r: Range) -> None:
    """The next token is stored by the control plane before long, and never where the guest is."""
    first = f"refresh-{new_id()}"
    binding = {
        "kind": "oauth",
        "token_url": "https://bound.test/token?once=1&life=0",
        "client_id": "app",
        "refresh_token": "${secrets.REFRESH}",
    }
    await r.keep_secret("REFRESH", first)
    bound = {"host": "bound.test", "paths": ["/api/**"], "secrets": [binding]}
    await r.allow(r.a, {"allow": [bound, {"host": "allowed.test", "paths": ["/public/**"]}]})
    try:
        answer = await r.fetch(r.a, "bound.test", "/api/x")
        assert answer["status"] == 200, answer
        assert "refresh-" not in str(answer)
        async with asyncio.timeout(30):
            while await _version(r, "REFRESH") < 2:
                await asyncio.sleep(0.02)
        await r.kill("gateway")
        await r.until_allowed(r.a)
        answer = await r.fetch(r.a, "bound.test", "/api/x")
        assert answer["status"] == 200, answer
    finally:
        await r.allow(r.a, POLICY)
        await r.space.http.delete("/v1/secrets/REFRESH")
    shown = [asked["form"]["refresh_token"] for asked in r.net.seen("token")]
    assert len(shown[shown.index(first) :]) >= 2
    assert len({*shown}) == len(shown), shown  # each once, as the endpoint demands


async def _version(r: Range, name: str) -> int:
    listed = (await r.space.http.get("/v1/secrets")).json()["secrets"]
    return next(int(secret["version"]) for secret in listed if secret["name"] == name)


@case("EGRESS-H5", "the egress proxy crashes while it holds a credential", "grep over logs and core files")
async def crash(r: Range) -> None:
    """H5: a crash of the proxy wrote headers to standard error."""
    for name in ("egress", "ingress", "edge"):
        ends = {str(Path(f"/proc/{r.space.daemon_pid(name)}/fd/{number}").readlink()) for number in (1, 2)}
        assert ends == {"/dev/null"}, "which headers a crash shows is chance; that nobody keeps them is not"
    await _use(r)
    lines = (
        "s = connect('bound.test')\nprint('ready', flush=True)\nfetch('bound.test', '/api/slow', on=s)\nprint('over')"
    )
    async with r.running(r.a, lines) as output:
        assert await output.line() == "ready"
        pid = r.space.daemon_pid("egress")
        process = await asyncio.create_subprocess_exec("kill", "-SEGV", str(pid))
        await process.wait()
        async with asyncio.timeout(60):
            while not r.space.daemon_ready("egress", pid):
                await asyncio.sleep(0.02)
    await r.until_allowed(r.a)
    kept = [*r.layout.log_dir.rglob("*"), *r.space.run_dir.rglob("*"), r.space.log_file, *Path("/").glob("core*")]
    leaked = [path for path in kept if path.is_file() and holds(path, CANARY)]
    assert not leaked, leaked
    assert [path for path in kept if path.is_file() and holds(path, "egress")], "the search finds what is there"


@case("T-15", "the key of the authority: in the guest, in files that others may read", "grep on the host")
async def authority(r: Range) -> None:
    """What is searched for is the text that a private key begins with."""
    script = (
        "cat /usr/local/share/ca-certificates/space-gateway.crt | head -1;"
        " grep -l -a -r --exclude-dir=proc --exclude-dir=sys -e 'BEGIN [A-Z ]*PRIVATE KEY-----$'"
        " /etc /root /home /tmp /opt /run /var 2>/dev/null; true"
    )
    _, out = await r.shell(r.a, ["/bin/sh", "-c", script], 120)
    assert out.splitlines() == ["-----BEGIN CERTIFICATE-----"], out
    places = (r.space.run_dir, r.space.data / "worker", r.layout.log_dir)
    found = [path for place in places for path in place.rglob("*") if path.is_file()]
    holding = [path for path in found if holds(path, "PRIVATE KEY-----")]
    assert not holding, holding
    assert [path for path in found if holds(path, "BEGIN CERTIFICATE-----")], "the search finds what is there"
    await r.allow(r.a, POLICY)
