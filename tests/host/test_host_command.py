"""Programs run to their end: outputs, statuses, deadlines, and nothing of them left."""

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest

from space.host import command
from space.host.command import CommandError
from space.host.process import start_time


async def test_outputs_and_status_come_back_apart() -> None:
    done = await command.run("sh", "-c", "cat; echo err >&2; exit 3", stdin=b"in", check=False)
    assert (done.status, done.stdout, done.stderr) == (3, "in", "err\n")


async def test_a_failure_names_command_and_reason() -> None:
    with pytest.raises(CommandError, match=r"sh -c echo broken.* exited with 4: broken") as caught:
        await command.run("sh", "-c", "echo broken >&2; exit 4")
    assert caught.value.status == 4


async def test_the_environment_of_this_process_does_not_reach_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    done = await command.run("env", env={"GIVEN": "1"})
    assert "SECRET" not in done.stdout
    assert "GIVEN=1" in done.stdout


async def test_a_deadline_kills_the_whole_group(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(CommandError, match="ran out of time"):
        await command.run("sh", "-c", script, timeout_s=0.5)
    await _gone(int((tmp_path / "pid").read_text()))


async def test_cancelling_kills_the_whole_group(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; wait"
    async with asyncio.TaskGroup() as group:
        running = group.create_task(command.run("sh", "-c", script))
        async with asyncio.timeout(10):
            while not (tmp_path / "pid").exists():
                await asyncio.sleep(0.01)
        running.cancel()
    assert running.cancelled()
    await _gone(int((tmp_path / "pid").read_text()))


async def test_what_a_program_leaves_in_its_group_dies_with_it() -> None:
    done = await command.run("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
    await _gone(int(done.stdout))


async def test_lines_come_while_it_runs(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    async with aclosing(command.lines("sh", "-c", f"echo one; cat {fifo}; echo err >&2", timeout_s=10)) as lines:
        assert await anext(lines) == "one"
        fifo.write_text("two\n")  # the program waits for this, so `one` cannot have come at its end
        assert [line async for line in lines] == ["two", "err"]


async def test_lines_end_with_the_failure_and_its_last_words() -> None:
    seen: list[str] = []

    async def collect() -> None:
        async for line in command.lines("sh", "-c", "echo last words; exit 7", timeout_s=10):
            seen.append(line)  # noqa: PERF401 - what came before the error is looked at

    with pytest.raises(CommandError, match="exited with 7: last words"):
        await collect()
    assert seen == ["last words"]


async def test_lines_left_early_leave_no_process(tmp_path: Path) -> None:
    async with aclosing(command.lines("sh", "-c", "echo $$; exec sleep 1000", timeout_s=100)) as lines:
        pid = int(await anext(lines))
    await _gone(pid)


async def _gone(pid: int) -> None:
    async with asyncio.timeout(5):
        while start_time(pid) is not None:
            await asyncio.sleep(0.01)
