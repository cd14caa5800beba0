"""`space up --detach`: returns when all is ready, leaves it running, and its words in a log."""

import asyncio
import os
import signal

from tests.support.deployment import SPACE, Deployment, eventually


async def test_it_returns_when_ready_and_runs_on(space: Deployment, sandbox: str) -> None:
    log = space.data / "logs" / "up.log"
    log.unlink(missing_ok=True)
    assert await space.stop() == 0
    assert "left running for the next start" in space.log_file.read_text()
    try:
        up = await asyncio.create_subprocess_exec(
            SPACE, "up", "--detach", "--port", str(space.port), "--data", str(space.data), env=space.settings,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(120):
            out, err = await up.communicate()  # to the end of both: the one in the background has let go of them
        assert (up.returncode, out.decode().count("SPACE is ready at")) == (0, 1), err.decode()
        assert b"worker is up" in err
        assert (await space.state(sandbox))["state"] == "running"
        assert await space.run(sandbox, "echo here") == (0, "here\n")
        pid = int((space.data / "lock").read_text())
        os.kill(pid, signal.SIGTERM)
        await eventually(lambda: "left running" in log.read_text(), within_s=40, what="it says that it stopped")
    finally:
        await space.up()
