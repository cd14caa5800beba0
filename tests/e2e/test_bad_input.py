"""Bad input gets a clear error that says what to do, and leaves nothing behind."""

import asyncio
import os
import shutil

import httpx2
import pytest
from tests.support.deployment import DATA, SPACE, Deployment


def _problem(answer: httpx2.Response, status: int, code: str) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json"), answer.headers
    body = answer.json()
    assert body["code"] == code, body
    assert body["status"] == status
    assert len(body["detail"]) > 10, "an error says what to do"
    return str(body["detail"])


async def test_unknown_template(space: Deployment) -> None:
    detail = _problem(await space.http.post("/v1/sandboxes", json={"template": "nope"}), 404, "template_not_found")
    assert "nope" in detail


async def test_wrong_and_missing_key(space: Deployment, sandbox: str) -> None:
    async with httpx2.AsyncClient(base_url=space.url, trust_env=False) as stranger:
        for path in ("/v1/sandboxes", f"/v1/sandboxes/{sandbox}", f"/v1/sandboxes/{sandbox}/files?path=/etc/passwd"):
            _problem(await stranger.get(path), 401, "unauthorized")
            _problem(await stranger.get(path, headers={"x-api-key": "e2b_" + "0" * 40}), 401, "unauthorized")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"args": ["no-such-program-anywhere"]}, 422, "command_not_found"),
        ({"cmd": "true", "user": "nobody-here"}, 422, "no_such_user"),
        ({"cmd": "true", "cwd": "/no/such/folder"}, 422, "no_such_directory"),
        ({"cmd": "true\0"}, 422, "invalid_argument"),
        ({}, 422, "invalid_argument"),
    ],
)
async def test_commands_that_cannot_start(
    space: Deployment, sandbox: str, body: object, status: int, code: str
) -> None:
    _problem(await space.http.post(f"/v1/sandboxes/{sandbox}/commands", json=body), status, code)


async def test_files_that_are_not_there(space: Deployment, sandbox: str) -> None:
    path = f"/v1/sandboxes/{sandbox}/files"
    _problem(await space.http.get(path, params={"path": "/no/such"}), 404, "no_such_file")
    _problem(await space.http.get(path, params={"path": "/etc"}), 409, "is_a_directory")
    _problem(await space.http.get(f"{path}?path=/tmp/a%00b"), 422, "invalid_path")
    dots = await space.http.get(path, params={"path": "/home/../etc/../etc/hostname"})
    assert dots.text.strip() == sandbox, "the whole file system is the sandbox's own; .. is ordinary"


async def test_no_path_leads_from_one_sandbox_to_another_route(space: Deployment, sandbox: str) -> None:
    for path in ("files/../../..", "files%2f..%2finit", "init", "health", "activity", "shutdown", "//files"):
        answer = await space.http.get(f"/v1/sandboxes/{sandbox}/{path}")
        assert answer.status_code in (400, 404), (path, answer.status_code, answer.text)


async def test_huge_json_body(space: Deployment, sandbox: str) -> None:
    async def body(size: int = 100 * 1024 * 1024):  # type: ignore[no-untyped-def]
        yield b'{"cmd": "'
        for _ in range(size // 65536):
            yield b"a" * 65536
        yield b'"}'

    for path in ("/v1/sandboxes", f"/v1/sandboxes/{sandbox}/commands"):
        try:
            answer = await space.http.post(path, content=body(), headers={"content-type": "application/json"})
        except httpx2.WriteError:
            continue  # the answer came, and the connection's end, while the body was still being sent
        _problem(answer, 413, "body_too_large")
    assert await space.run(sandbox, "echo fine") == (0, "fine\n")


async def test_unknown_route_and_method(space: Deployment) -> None:
    _problem(await space.http.get("/v1/nothing"), 404, "not_found")
    answer = await space.http.put("/v1/sandboxes", json={})
    assert answer.status_code == 405
    assert answer.headers["content-type"].startswith("application/problem+json")


async def test_unknown_sandbox(space: Deployment) -> None:
    ghost = "0" * 20
    _problem(await space.http.get(f"/v1/sandboxes/{ghost}"), 404, "not_found")
    _problem(await space.http.delete(f"/v1/sandboxes/{ghost}"), 404, "not_found")
    _problem(await space.http.post(f"/v1/sandboxes/{ghost}/commands", json={"cmd": "true"}), 404, "not_found")


async def test_disk_full_in_the_guest(space: Deployment, sandbox: str) -> None:
    # a small file system of the guest's own stands for its full disk: filling 10 GiB takes minutes
    script = "sudo mkdir /small && sudo mount -t tmpfs -o size=1m tmpfs /small"
    assert (await space.run(sandbox, script))[0] == 0
    path = f"/v1/sandboxes/{sandbox}/files"
    where = {"path": "/small/big"}
    detail = _problem(await space.http.put(path, params=where, content=b"x" * (8 << 20)), 507, "disk_full")
    assert detail
    listing = (await space.http.get(f"{path}/list", params={"path": "/small"})).json()["entries"]
    assert listing == [], "the broken upload left something behind"


async def test_more_memory_than_the_host_has(space: Deployment) -> None:
    answer = await space.http.post("/v1/sandboxes", json={"template": "base", "memory_mib": 16384})
    _problem(answer, 503, "no_capacity")
    assert "retry-after" in answer.headers
    live = (await space.http.get("/v1/sandboxes", params={"state": "creating"})).json()["sandboxes"]
    assert live == []


async def test_settings_and_users_of_the_command_line(space: Deployment) -> None:
    status, _, err = await space.cli("run", "no-such-template", "--", "true")
    assert status == 125
    assert "no-such-template" in err
    status, _, err = await space.cli("sandbox", "exec", "0" * 20, "--", "true")
    assert status == 125
    assert "error:" in err


async def test_a_data_area_that_does_not_fit_is_told_without_a_traceback() -> None:
    data = DATA.with_name("too-big")
    environment = {"PATH": os.environ["PATH"], "SPACE_DISK_GIB": "99999"}  # noqa: TID251 - a child's PATH
    try:
        up = await asyncio.create_subprocess_exec(
            SPACE, "up", "--port", "0", "--data", str(data), env=environment,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(60):
            _, err = await up.communicate()
        assert up.returncode == 1
        assert b"ask for less" in err
        assert b"Traceback" not in err
    finally:
        down = await asyncio.create_subprocess_exec(SPACE, "down", "--data", str(data))
        assert await down.wait() == 0
        shutil.rmtree(data)
