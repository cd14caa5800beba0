# sdk: newest
"""A paused sandbox that may be woken by requests is; any other stays asleep and is told as not running."""

import datetime
import os
import time

import httpx

from e2b import Sandbox, SandboxException

URL = os.environ["E2B_SANDBOX_URL"]  # noqa: TID251 - a user's program


def ask(sandbox: Sandbox, **headers: str) -> httpx.Response:
    """Ask port 8000."""
    extra = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.get(URL, headers={"host": f"8000-{sandbox.sandbox_id}.localhost", **extra}, timeout=60)


def main() -> None:
    """Wake one by a request to its server and by a command; leave the other asleep."""
    sandbox = Sandbox.create("base", timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
    sandbox.files.write("/home/user/www/index.html", "awake")
    sandbox.commands.run("python3 -m http.server 8000 --directory /home/user/www", background=True)
    deadline = time.monotonic() + 60
    while ask(sandbox).status_code != 200:
        assert time.monotonic() < deadline

    sandbox.pause()
    assert sandbox.get_info().state.value == "paused"
    unasked = httpx.get(f"{URL}/health", headers={"e2b-sandbox-id": sandbox.sandbox_id})
    assert unasked.status_code == 502, "whoever shows no token wakes nobody at the agent's port"
    assert sandbox.get_info().state.value == "paused"
    answer = ask(sandbox)
    assert (answer.status_code, answer.text) == (200, "awake"), answer.text
    info = sandbox.get_info()
    assert info.state.value == "running"
    left = info.end_at - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(minutes=3) < left <= datetime.timedelta(minutes=5, seconds=5), left

    sandbox.pause()
    assert sandbox.commands.run("echo woken").stdout == "woken\n"
    assert sandbox.get_info().state.value == "running"
    sandbox.kill()

    asleep = Sandbox.create("base", timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": False})
    asleep.pause()
    answer = ask(asleep)
    assert (answer.status_code, answer.json()["message"]) == (502, "The sandbox was not found"), answer.text
    assert not asleep.is_running()
    try:
        asleep.commands.run("true")
    except SandboxException as error:
        assert "not found" in str(error), str(error)
    else:
        raise AssertionError("a command ran in a sandbox that is paused")
    assert asleep.get_info().state.value == "paused"
    asleep.kill()


main()
