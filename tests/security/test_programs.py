"""What ordinary programs do where their policy lets them, with nothing configured in the guest (positive controls)."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.support.range import POLICY, Range

OPEN = {
    "allow": [
        {"host": name, "protocols": ["https", "http"], "websocket": True}
        for name in ("allowed.test", "git.test", "pypi.test")
    ]
}
PIP = next(iter(sorted(Path("/usr/share/python-wheels").glob("pip-*.whl"))), None)


@pytest.fixture(scope="module")
async def guest(arena: Range) -> AsyncGenerator[Range]:
    """The range, with A allowed what programs need."""
    await arena.allow(arena.a, OPEN)
    yield arena
    await arena.allow(arena.a, POLICY)


async def _shell(guest: Range, script: str) -> str:
    code, out = await guest.shell(guest.a, ["/bin/bash", "-lc", script])
    assert code == 0, out
    return out


async def test_curl_and_python_trust_the_gateway_with_and_without_their_environment(guest: Range) -> None:
    """The second time as sudo leaves it: an empty environment, so that only the system's own store is left."""
    python = "import urllib.request as u; print(u.urlopen('https://allowed.test/files/small').read().decode())"
    for prefix in ("", "env -i "):
        assert "a small file" in await _shell(guest, f"{prefix}curl -sS https://allowed.test/files/small")
        assert "a small file" in await _shell(guest, f'{prefix}/usr/bin/python3 -c "{python}"')
    assert "a small file" in await _shell(guest, "curl -sS http://allowed.test/files/small")


async def test_the_environment_names_the_bundle_for_programs_with_their_own(guest: Range) -> None:
    told = dict(line.split("=", 1) for line in (await _shell(guest, "env")).splitlines() if "=" in line)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT"):
        assert told[name] == "/etc/ssl/certs/ca-certificates.crt", name
    assert told["NODE_EXTRA_CA_CERTS"].startswith("/usr/local/share/ca-certificates/")


async def test_git_clones_over_https(guest: Range) -> None:
    script = "rm -rf /tmp/clone && git clone --quiet https://git.test/repo.git /tmp/clone && cat /tmp/clone/hello.txt"
    assert await _shell(guest, script) == "hello from git\n"


@pytest.mark.skipif(PIP is None, reason="this machine has no pip of Debian's to give to a guest")
async def test_pip_installs_from_the_index(guest: Range) -> None:
    assert PIP is not None
    where = {"path": f"/opt/range/{PIP.name}", "user": "root"}
    answer = await guest.space.http.put(f"/v1/sandboxes/{guest.a}/files", params=where, content=PIP.read_bytes())
    assert answer.is_success
    script = (
        f"cd /tmp && python3 /opt/range/{PIP.name}/pip install --quiet --no-cache-dir --target /tmp/site"
        " --index-url https://pypi.test/simple/ greeting 2>&1"
        ' && PYTHONPATH=/tmp/site python3 -c "import greeting; print(greeting.HELLO)"'
    )
    assert "hello from the index" in await _shell(guest, script)


async def test_events_websockets_and_grpc_stream(guest: Range) -> None:
    assert (await _shell(guest, "curl -sS -N https://allowed.test/events")).count("data: ") == 3
    talk = await guest.run(
        guest.a,
        """
key = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
       ("Sec-WebSocket-Version", "13")]
s = connect("allowed.test")
status = fetch("allowed.test", "/ws", headers=key, on=s)["status"]
s.sendall(b"ping"); show([status, s.recv(4).decode()])
""",
    )
    assert talk == [101, "ping"]
    frames = "\\x00\\x00\\x00\\x00\\x02hi\\x00\\x00\\x00\\x00\\x03you"
    script = (
        f"printf '{frames}' | curl -sS --http2 -D /tmp/head -o /tmp/body -H 'content-type: application/grpc'"
        " -H 'te: trailers' --data-binary @- https://allowed.test/echo.Echo/Stream; tail -c 3 /tmp/body; cat /tmp/head"
    )
    out = await _shell(guest, script)
    assert out.startswith("you"), out
    assert "grpc-status: 0" in out, out


async def test_large_bodies_pass_both_ways(guest: Range) -> None:
    out = await _shell(
        guest,
        "curl -sS https://allowed.test/files/big | head -c 8000000 | wc -c;"
        " head -c 8000000 /dev/zero >/tmp/zeros; curl -sS -T /tmp/zeros https://allowed.test/upload;"
        " echo in-chunks | curl -sS -T - https://allowed.test/any",
    )
    assert out.startswith("8000000\n"), out
    assert '{"bytes": 8000000}' in out, out
    assert '"body": "in-chunks\\n"' in out, out
