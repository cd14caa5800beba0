"""A sandbox that its timeout pauses, which a request wakes; with the asynchronous client."""

import asyncio
import time

from e2b import AsyncSandbox


async def main() -> None:
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    sleeper = await AsyncSandbox.create("base", timeout=300, lifecycle=lifecycle)
    info = await sleeper.get_info()
    assert (info.lifecycle["on_timeout"].value, info.lifecycle["auto_resume"]) == ("pause", True)
    await sleeper.set_timeout(0)
    deadline = time.monotonic() + 60
    while (await sleeper.get_info()).state.value != "paused":
        assert time.monotonic() < deadline, "its timeout did not pause it"
        await asyncio.sleep(0.2)
    assert (await sleeper.commands.run("echo awake")).stdout == "awake\n"
    left = (await sleeper.get_info()).end_at.timestamp() - time.time()
    assert 240 < left <= 300, left
    assert await sleeper.kill()


asyncio.run(main())
