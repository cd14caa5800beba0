"""Templates from steps on the whole of SPACE: what is killed in the middle of a build leaves nothing of it."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support.deployment import Deployment, eventually

_STEPS = [{"kind": "RUN", "args": ["echo at work; sleep 600"], "force": True}]


async def _build(space: Deployment, build: str) -> Any:
    return (await space.http.get(f"/v1/template-builds/{build}")).json()


def _half_made(space: Deployment) -> list[Path]:
    return list((space.data / "disk").glob("half-made-*"))


@pytest.mark.parametrize("who", ["worker", "api"])
async def test_killed_in_the_middle_of_a_build(space: Deployment, who: str) -> None:
    began = await space.http.post("/v1/template-builds", json={"name": "killed", "source": "base", "steps": _STEPS})
    assert began.status_code == 202, began.text
    build = began.json()["id"]

    async def at_work() -> bool:
        return any(line["text"] == "at work" for line in (await _build(space, build))["lines"])

    await eventually(at_work, within_s=60, what="the step runs")
    assert _half_made(space)
    pid = space.daemon_pid(who)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: space.daemon_ready(who, pid), within_s=60, what=f"{who} is back")

    async def ended() -> Any:
        found = await _build(space, build)
        return found if found["status"] == "error" else None

    found = await eventually(ended, within_s=60, what="the build has ended")
    assert found["reason"]

    def nothing_left() -> bool:
        """The machines that are left are spares."""
        spares = {path.stem for path in (space.data / "worker" / "spares").glob("*.json")}
        return not _half_made(space) and {path.name for path in (space.data / "disk" / "vms").iterdir()} <= spares

    await eventually(nothing_left, within_s=60, what="nothing of the build is left")
    listed = (await space.http.get("/v1/templates")).json()["templates"]
    assert "killed" not in [template["name"] for template in listed]
