"""schemathesis over /openapi.json: whatever is sent, the answer is one that the document promises, and never a 500.

The agent's routes are left out: a sandbox serves them, not this process. So is the stream of what was decided about
egress, which may go on for ever.
"""

import asyncio
import socket
import sys
from pathlib import Path

import pytest
from tests.support.control_plane import Api
from tests.support.rows import insert_template

from space.apiserver.assembly import assemble
from space.control import waiting
from space.host import command
from space.wire.serving import server as http_server

_RUN_S = 240
_EXAMPLES = "15"
_CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503]
"""
"""503 is right here: there is no worker."""

_POLICIES = """
[[operations]]
include-path-regex = "^/v1/sandboxes$|/policy$"
checks.positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 422, "5xx"]
"""
"""No schema can say that the rules of a policy do not contradict each other."""


async def test_every_answer_is_as_documented(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAIT_UNAVAILABLE_S", 0.01)
    await insert_template(api.plane.db, api.project)
    config = tmp_path / "schemathesis.toml"
    config.write_text(_CONFIG + _POLICIES)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # else each answer waits 40 ms for an acknowledgement
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/openapi.json"
    web = http_server(assemble(api.plane, api.access, None), grace_s=1)
    async with asyncio.TaskGroup() as group:
        group.create_task(web.serve(sockets=[listening]))
        done = await command.run(
            str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config), "run", url,
            "--header", f"X-API-KEY: {api.key}", "--exclude-path-regex", "/(commands|files|egress)",
            "--max-examples", _EXAMPLES, "--seed", "1", "--no-color",
            cwd=tmp_path, timeout_s=_RUN_S, check=False,
        )  # fmt: skip
        web.should_exit = True
    assert done.status == 0, done.stdout[-20_000:] + done.stderr[-2000:]


async def test_every_route_is_summed_up_in_a_sentence(api: Api) -> None:
    document = (await api.http.get("/openapi.json")).json()
    told = [one["summary"] for item in document["paths"].values() for one in item.values() if "summary" in one]
    assert len(told) > 30
    assert [summary for summary in told if not summary.endswith(".")] == []
