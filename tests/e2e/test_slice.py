"""The vertical slice: create, command, files, delete, through both proxies into a real microVM."""

import asyncio
import base64
import json
import platform
import signal
from pathlib import Path

from tests.support.deployment import SPACE, Deployment, eventually


async def test_run_prints_live_and_exits_with_the_commands_code(space: Deployment) -> None:
    script = 'uname -r; id -un; python3 -c "print(6*7)"; echo oops >&2; exit 3'
    status, out, err = await space.cli("run", "base", "--", "sh", "-c", script)
    assert status == 3, err
    kernel, user, answer = out.split()
    assert kernel != platform.release()
    assert (user, answer) == ("user", "42")
    assert "oops" in err


async def test_a_closed_terminal_leaves_no_sandbox(space: Deployment) -> None:
    before = {one["id"] for one in (await space.http.get("/v1/sandboxes")).json()["sandboxes"]}
    running = await asyncio.create_subprocess_exec(
        SPACE, "run", "base", "--", "sh", "-c", "echo go; sleep 60", env=space.environment,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        assert running.stdout is not None
        assert await running.stdout.readline() == b"go\n"
        running.send_signal(signal.SIGHUP)
        assert await running.wait() == 130
    assert {one["id"] for one in (await space.http.get("/v1/sandboxes")).json()["sandboxes"]} <= before


async def test_output_arrives_while_the_command_runs(space: Deployment, sandbox: str) -> None:
    # the command ends only after the file appears that is written once its first line was read
    script = "echo one; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo two"
    got: list[str] = []
    async with asyncio.timeout(30):
        async for line in space.lines(sandbox, cmd=script):
            if line["type"] == "stdout":
                got.append(base64.b64decode(line["data"]).decode().strip())
                if got == ["one"]:
                    answer = await space.http.put(f"/v1/sandboxes/{sandbox}/files", params={"path": "/tmp/go"})
                    assert answer.is_success, answer.text
    assert got == ["one", "two"]


async def test_separate_streams_share_one_offset_space(space: Deployment, sandbox: str) -> None:
    lines = [line async for line in space.lines(sandbox, cmd="printf abc; sleep 0.3; printf defg >&2; exit 5")]
    chunks = [line for line in lines if line["type"] in ("stdout", "stderr")]
    assert [(c["type"], c["offset"], base64.b64decode(c["data"])) for c in chunks] == [
        ("stdout", 0, b"abc"),
        ("stderr", 3, b"defg"),
    ]
    assert lines[-1]["type"] == "exit"
    assert (lines[-1]["code"], lines[-1]["next_offset"]) == (5, 7)


async def test_the_api_tells_what_happened(space: Deployment) -> None:
    made = await space.create(labels={"purpose": "test"}, env={"GREETING": "hello"})
    assert await space.run(made, "echo $GREETING; hostname") == (0, f"hello\n{made}\n")
    found = (await space.http.get("/v1/sandboxes", params={"label": "purpose:test"})).json()["sandboxes"]
    assert made in [entry["id"] for entry in found]
    row = await space.state(made)
    assert row["state"] == "running"
    assert row["timings_ms"]["total"] > 0
    await space.delete(made)
    await space.delete(made)
    assert (await space.http.get(f"/v1/sandboxes/{made}")).status_code == 404
    events = (await space.http.get(f"/v1/sandboxes/{made}/events")).json()["events"]
    assert [event["state"] for event in events] == ["creating", "running", "deleting", "deleted"]


async def test_create_without_waiting_gives_an_operation(space: Deployment) -> None:
    answer = await space.http.post("/v1/sandboxes", params={"wait": "0"}, json={"template": "base"})
    assert answer.status_code == 202, answer.text
    operation = answer.json()

    async def done() -> bool:
        found = (await space.http.get(f"/v1/operations/{operation['id']}")).json()
        return bool(found["status"] == "succeeded")

    await eventually(done, within_s=60, what="the operation succeeded")
    made = operation["sandbox_id"]
    assert (await space.state(made))["state"] == "running"
    await space.delete(made)


async def test_files_go_both_ways_unchanged(space: Deployment, sandbox: str) -> None:
    path = f"/v1/sandboxes/{sandbox}/files"
    content = bytes(range(256)) * 4096
    where = {"path": "/home/user/a folder/ü%2F.bin"}
    put = await space.http.put(path, params=where, content=content)
    assert put.status_code == 201, put.text
    assert put.json()["size_bytes"] == len(content)
    assert (await space.http.get(path, params=where)).content == content
    part = await space.http.get(path, params=where, headers={"range": "bytes=255-257"})
    assert (part.status_code, part.content) == (206, bytes([255, 0, 1]))
    code, output = await space.run(sandbox, "stat -c '%U %s' '/home/user/a folder/ü%2F.bin'")
    assert (code, output) == (0, f"user {len(content)}\n")
    assert (await space.http.delete(path, params=where)).is_success
    assert (await space.http.get(path, params=where)).status_code == 404


async def test_copy_from_the_shell_and_back(space: Deployment, sandbox: str, tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(b"there and back\0")
    status, _, err = await space.cli("sandbox", "cp", str(tmp_path / "note"), f"{sandbox}:/tmp/note")
    assert status == 0, err
    status, _, err = await space.cli("sandbox", "cp", f"{sandbox}:/tmp/note", str(tmp_path / "again"))
    assert status == 0, err
    assert (tmp_path / "again").read_bytes() == b"there and back\0"


async def test_terminal_knows_its_size_and_follows_a_change(space: Deployment, sandbox: str) -> None:
    output = bytearray()
    command: str | None = None
    async for line in space.lines(sandbox, cmd="stty size; read x; stty size", pty={"cols": 100, "rows": 30}):
        if line["type"] == "start":
            command = line["command_id"]
        elif line["type"] == "pty":
            output += base64.b64decode(line["data"])
            if b"30 100" in output and command:
                base = f"/v1/sandboxes/{sandbox}/commands/{command}"
                assert (await space.http.post(f"{base}/resize", json={"cols": 80, "rows": 24})).is_success
                assert (await space.http.post(f"{base}/stdin", content=b"\n")).is_success
                command = None
    assert b"24 80" in output


async def test_detached_command_is_read_again_by_offset(space: Deployment, sandbox: str) -> None:
    base = f"/v1/sandboxes/{sandbox}/commands"
    answer = await space.http.post(base, json={"cmd": "printf 0123456789", "detach": True})
    command = answer.json()["command_id"]
    text = (await space.http.get(f"{base}/{command}/output", params={"from": 4})).text
    lines = [json.loads(line) for line in text.splitlines()]
    assert b"".join(base64.b64decode(x["data"]) for x in lines if x["type"] == "stdout") == b"456789"
    assert lines[-1]["type"] == "exit"
