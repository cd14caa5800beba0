"""What a guest and a neighbour cannot reach. The host-side oracle is named in each test."""

import asyncio
import base64
import re
from pathlib import Path

from tests.support.deployment import Deployment, vmm_pids, vms


async def test_guest_reaches_nothing_but_answers(space: Deployment, sandbox: str) -> None:
    """Positive control: the same guest answers its own loopback.

    Addresses that stand for names end at the egress proxy, which judges what is said; tests/security tries those.
    """
    other = await space.create()
    try:
        probe = "timeout 3 bash -c 'exec 3<>/dev/tcp/%s' 2>/dev/null && echo OPEN || echo shut"
        assert await space.run(sandbox, probe % "127.0.0.1/49983") == (0, "OPEN\n")
        targets = [
            "169.254.0.22/49981", "169.254.0.22/49982", "169.254.0.22/49983", "169.254.0.22/22",
            "100.64.0.2/49983", "100.64.0.3/49983",
            "203.0.113.1/443", "169.254.169.254/80", "127.0.0.1/49981", "127.0.0.1/49982",
        ]  # fmt: skip
        script = "; ".join(probe % target for target in targets)
        _, output = await space.run(sandbox, script, user="root")
        # the agent's internal ports accept a connection from inside and answer nobody but the slot's own address
        answers = dict(zip(targets, output.split(), strict=True))
        for port in (49981, 49982):
            answers.pop(f"127.0.0.1/{port}")
        assert set(answers.values()) == {"shut"}, answers
        _, output = await space.run(
            sandbox, "curl -s -m 3 http://127.0.0.1:49982/health -o /dev/null -w '%{http_code}'"
        )
        assert output in ("000", "403"), output
        said = "exec 3<>/dev/tcp/127.0.0.1/49981 && echo thaw >&3 && timeout 3 cat <&3; echo end"
        assert (await space.run(sandbox, f"bash -c '{said}' 2>/dev/null", user="root"))[1] == "end\n"
        _, output = await space.run(sandbox, "getent hosts example.test; echo $?")
        assert output.strip() == "2"
    finally:
        await space.delete(other)


async def test_agent_refuses_calls_from_inside_without_the_token(space: Deployment, sandbox: str) -> None:
    call = 'curl -s -o /dev/null -w \'%{http_code}\' -d \'{"cmd":"id","user":"root"}\' http://127.0.0.1:49983/commands'
    assert await space.run(sandbox, call) == (0, "401")


SNIFFER = """
import socket
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
raw.bind(("eth0", 0))
print("listening", flush=True)
while True:
    frame = raw.recv(65535)
    if b"marker-in-a-path" in frame and b"HTTP/1.1" in frame:
        print(frame[frame.index(b"GET "):].decode("latin-1"), flush=True)
        break
"""


async def test_guest_sees_no_header_of_ours(space: Deployment, sandbox: str) -> None:
    """Oracle: root in the guest reads the request off its own network device. Control: it finds the path asked for."""
    seen = ""
    asked = False
    async for line in space.lines(sandbox, args=["python3", "-c", SNIFFER], user="root", timeout_s=60):
        if line["type"] == "stdout":
            seen += base64.b64decode(line["data"]).decode()
        if "listening" in seen and not asked:
            asked = True
            headers = {"x-space-to": "forged", "x-forwarded-for": "203.0.113.9", "x-envoy-original-path": "/forged"}
            where = {"path": "/tmp/marker-in-a-path"}
            await space.http.get(f"/v1/sandboxes/{sandbox}/files", params=where, headers=headers)
    request, *lines = seen.split("listening\n", 1)[1].strip().split("\r\n")
    assert request.startswith("GET /v1/files?path=%2Ftmp%2Fmarker-in-a-path"), seen
    names = {line.split(":", 1)[0].lower() for line in lines if ":" in line}
    assert names <= {"host", "accept", "accept-encoding", "user-agent", "x-access-token"}, names
    assert space.key not in seen
    assert sandbox not in request


async def test_vmm_is_jailed(space: Deployment, sandbox: str) -> None:
    """Oracle: /proc of the VMM on the host."""
    pids = vmm_pids(space.data)
    assert pids
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        uids = fields["Uid"].split()
        assert len(set(uids)) == 1
        assert int(uids[0]) >= 0x7000_0000
        assert int(fields["CapEff"], 16) == 0
        assert int(fields["CapBnd"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        for thread in Path(f"/proc/{pid}/task").iterdir():
            assert re.search(r"^Seccomp:\t2$", (thread / "status").read_text(), re.MULTILINE), thread.name
        for namespace in ("net", "mnt", "pid", "ipc", "uts"):
            assert Path(f"/proc/{pid}/ns/{namespace}").readlink() != Path(f"/proc/self/ns/{namespace}").readlink(), (
                namespace
            )


async def test_sockets_refuse_other_users(space: Deployment) -> None:
    """Oracle: connect(2) as a uid that belongs to no part of SPACE. Positive control: root connects."""
    script = (
        "import os,socket,sys\n"
        "if sys.argv[1]=='drop': os.setgroups([]); os.setgid(12345); os.setuid(12345)\n"
        "for p in sys.argv[2:]:\n"
        "  s=socket.socket(socket.AF_UNIX)\n"
        "  try: s.connect(p); print('open')\n"
        "  except OSError as e: print(type(e).__name__)\n"
    )
    paths = [
        "worker/worker.sock", "authz/authz.sock", "egress/gateway.sock", "gateway/control.sock", "ingress/node.sock",
        "api/api.sock",
    ]  # fmt: skip
    sockets = [str(space.run_dir / path) for path in paths]

    async def attempt(mode: str) -> list[str]:
        process = await asyncio.create_subprocess_exec(
            "/usr/bin/python3", "-c", script, mode, *sockets, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return out.decode().split()

    assert await attempt("stay") == ["open"] * len(paths)
    assert await attempt("drop") == ["PermissionError"] * len(paths)


async def test_data_of_the_instance_is_closed_to_other_users(space: Deployment, sandbox: str) -> None:
    for name in ("api-key", "logs", "worker", "cache"):
        mode = (space.data / name).stat().st_mode
        assert mode & 0o006 == 0, f"{name} can be read or written by everyone: {mode:o}"
    for file in (space.data / "logs").iterdir():
        assert file.stat().st_mode & 0o007 == 0, f"{file.name} is open to everyone"
    for file in (space.data / "disk" / "vms" / vms(space.data)[sandbox]["vm"]).iterdir():
        if file.is_file():
            assert file.stat().st_mode & 0o077 == 0, f"{file.name} of a VM can be read by others"
