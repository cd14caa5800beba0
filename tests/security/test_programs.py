"""What ordinary programs do where their policy lets them, with nothing configured in the guest (positive controls)."""

from collections.abc import AsyncGenerator

import pytest
from tests.support import guest_programs
from tests.support.range import POLICY, Range

OPEN = {
    "allow": [
        {"host": name, "protocols": ["https", "http"], "websocket": True}
        for name in ("allowed.test", "git.test", "pypi.test")
    ]
}
SECRET = "the-value-of-a-secret-that-a-person-set-7c1e"


@pytest.fixture(scope="module")
async def guest(arena: Range) -> AsyncGenerator[Range]:
    """The range, with A allowed what programs need."""
    await arena.allow(arena.a, OPEN)
    yield arena
    await arena.allow(arena.a, POLICY)


async def _shell(guest: Range, script: str) -> str:
    code, out = await guest.shell(guest.a, ["/bin/bash", "-lc", script], 300)
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


async def _put(guest: Range, path: str, content: bytes) -> None:
    answer = await guest.space.http.put(
        f"/v1/sandboxes/{guest.a}/files", params={"path": path, "user": "root"}, content=content
    )
    assert answer.is_success, answer.text


@pytest.mark.skipif(not guest_programs.HAS_PIP, reason="this machine has no pip of Debian's to give to a guest")
async def test_pip_installs_from_the_index(guest: Range) -> None:
    await _put(guest, "/opt/range/pip.tar", guest_programs.pip())
    script = (
        "mkdir -p /opt/range/pip && tar -C /opt/range/pip -xf /opt/range/pip.tar && cd /tmp"
        " && PYTHONPATH=/opt/range/pip python3 -m pip install --quiet --no-cache-dir --no-deps --no-compile"
        " --disable-pip-version-check --root-user-action=ignore --target /tmp/site"
        " --index-url https://pypi.test/simple/ greeting 2>&1"
        ' && PYTHONPATH=/tmp/site python3 -c "import greeting; print(greeting.HELLO)"'
    )
    assert "hello from the index" in await _shell(guest, script)


async def test_python_requests_and_node_fetch(guest: Range) -> None:
    """Both bring a list of authorities of their own; requests is told another by its environment, and so is Node."""
    await _put(guest, "/opt/range/requests.tar", guest_programs.requests())
    python = "import requests; print(requests.get('https://allowed.test/files/small').text)"
    script = (
        "mkdir -p /opt/range/requests && tar -C /opt/range/requests -xf /opt/range/requests.tar"
        f' && PYTHONPATH=/opt/range/requests /usr/bin/python3 -c "{python}"'
    )
    assert "a small file" in await _shell(guest, script)
    await _put(guest, "/opt/range/node", (await guest_programs.node()).read_bytes())
    script = "fetch('https://allowed.test/files/small').then(a => a.text()).then(t => console.log(t))"
    assert "a small file" in await _shell(guest, f'chmod +x /opt/range/node && /opt/range/node -e "{script}"')


async def test_a_secret_goes_from_the_command_line_to_the_server_and_is_told_of(guest: Range) -> None:
    """`space secret set`, a policy that binds it, a request, `space egress log`; the guest never has the value."""
    status, _, problem = await guest.space.cli("secret", "set", "PERSONS", stdin=SECRET.encode())
    assert status == 0, problem
    bound = {"host": "bound.test", "headers": {"authorization": "Bearer ${secrets.PERSONS}"}}
    await guest.allow(guest.a, {"allow": [bound]})
    try:
        answer = await guest.fetch(guest.a, "bound.test", "/api/persons")
        assert answer["status"] == 200, answer
        assert SECRET not in str(answer)
        arrived = [line["authorization"] for line in guest.net.seen("web") if line["path"] == "/api/persons"]
        assert arrived == [f"Bearer {SECRET}"]
        assert (await guest.fetch(guest.a, "denied.test", "/x", address="198.18.0.1")).get("status") is None
        assert await guest.decided(guest.a, path="/api/persons", allowed=True)
        status, told, problem = await guest.space.cli("egress", "log", guest.a, "--output", "json")
        assert status == 0, problem
        assert '"/api/persons"' in told
        assert SECRET not in told
    finally:
        await guest.allow(guest.a, OPEN)


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
