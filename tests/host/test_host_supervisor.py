"""Server processes kept running: started in order, restarted when they die, stopped in reverse, found after a kill."""

import asyncio
import dataclasses
import os
import signal
import sys
from pathlib import Path

import pytest

from space.cli.supervisor import DaemonSpec, Record, Supervisor, read_records, stop_leftovers
from space.host.daemon import spawn
from space.host.process import start_time
from space.model.errors import Unavailable


def _spec(folder: Path, name: str, script: str, *, start_timeout_s: float = 10, stop_grace_s: float = 3) -> DaemonSpec:
    """Return a process that is ready when it has made the file `<name>.ready`."""
    log = folder / f"{name}.log"

    async def ready() -> bool:
        return (folder / f"{name}.ready").exists()

    return DaemonSpec(
        name=name,
        argv=("sh", "-c", f"cd {folder}; {script}"),
        log_file=log,
        output=log,
        ready=ready,
        start_timeout_s=start_timeout_s,
        stop_grace_s=stop_grace_s,
    )


def _steady(folder: Path, name: str) -> DaemonSpec:
    return _spec(folder, name, f"touch {name}.ready; exec sleep 1000")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    made = tmp_path / "records"
    made.mkdir()
    return made


def _record(records: Path, name: str) -> Record:
    return next(record for record in read_records(records) if record.name == name)


async def _until(records: Path, name: str, *, restarts: int) -> Record:
    async with asyncio.timeout(20):
        while True:
            record = _record(records, name)
            if record.restarts >= restarts and record.state == "ready":
                return record
            await asyncio.sleep(0.02)


async def test_a_process_that_dies_is_started_again(tmp_path: Path, records: Path) -> None:
    supervisor = Supervisor(records, lambda _: None)
    async with asyncio.TaskGroup() as group:
        await supervisor.start(_steady(tmp_path, "a"), group)
        first = _record(records, "a")
        assert (first.state, first.restarts) == ("ready", 0)
        os.kill(first.pid, signal.SIGKILL)
        second = await _until(records, "a", restarts=1)
        assert second.pid != first.pid
        assert second.last_exit == -signal.SIGKILL
        await supervisor.stop()
    assert start_time(second.pid) is None
    assert read_records(records) == []


async def test_one_that_dies_again_and_again_is_not_given_up(tmp_path: Path, records: Path) -> None:
    script = (
        "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n; touch a.ready; [ $n -lt 3 ] || exec sleep 1000; exit 1"
    )
    supervisor = Supervisor(records, lambda _: None)
    async with asyncio.TaskGroup() as group:
        await supervisor.start(_spec(tmp_path, "a", script), group)
        await _until(records, "a", restarts=3)
        await supervisor.stop()


async def test_one_that_has_served_for_a_while_starts_again_without_delay(
    tmp_path: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delay that has grown does not stay: ten deaths would take half a minute of delays."""
    monkeypatch.setattr("space.cli.supervisor._STEADY_S", 0.0)
    supervisor = Supervisor(records, lambda _: None)
    async with asyncio.TaskGroup() as group:
        await supervisor.start(_steady(tmp_path, "a"), group)
        async with asyncio.timeout(15):
            for restarts in range(10):
                os.kill((await _until(records, "a", restarts=restarts)).pid, signal.SIGKILL)
            await _until(records, "a", restarts=10)
        await supervisor.stop()


async def test_they_stop_in_reverse_order_and_stubborn_ones_too(tmp_path: Path, records: Path) -> None:
    def script(name: str) -> str:
        return f"trap 'echo {name} >> order; exit' TERM; touch {name}.ready; while :; do sleep 0.05; done"

    supervisor = Supervisor(records, lambda _: None)
    async with asyncio.TaskGroup() as group:
        for name in ("first", "second"):
            await supervisor.start(_spec(tmp_path, name, script(name)), group)
        stubborn = "trap '' TERM; touch stubborn.ready; while :; do sleep 0.05; done"
        await supervisor.start(_spec(tmp_path, "stubborn", stubborn, stop_grace_s=0.2), group)
        pid = _record(records, "stubborn").pid
        await supervisor.stop()
    assert (tmp_path / "order").read_text().split() == ["second", "first"]
    assert start_time(pid) is None


async def test_one_that_ends_at_once_fails_the_start_with_its_last_words(tmp_path: Path, records: Path) -> None:
    supervisor = Supervisor(records, lambda _: None)
    async with asyncio.TaskGroup() as group:
        with pytest.raises(Unavailable, match=r"ended with status 3(.|\n)*no such database"):
            await supervisor.start(_spec(tmp_path, "a", "echo no such database >&2; exit 3"), group)
        await supervisor.stop()


async def test_only_the_words_of_this_start_are_told(tmp_path: Path, records: Path) -> None:
    """The log of an earlier start once spoke for this one, and a traceback hid what was wrong."""
    (tmp_path / "a.log").write_text("caught ENVOY_SIGTERM\n")
    code = (
        "import asyncio\nasync def f():\n async with asyncio.TaskGroup(): raise OSError('no room')\nasyncio.run(f())\n"
    )
    (tmp_path / "a.py").write_text(code)
    supervisor = Supervisor(records, lambda _: None)
    async with asyncio.TaskGroup() as group:
        with pytest.raises(Unavailable) as failed:
            await supervisor.start(_spec(tmp_path, "a", f"exec {sys.executable} a.py"), group)
        await supervisor.stop()
    assert str(failed.value).splitlines()[1:-1] == ["OSError: no room"]
    assert str(tmp_path / "a.log") in str(failed.value)


async def test_what_goes_on_is_told_in_words_not_in_events(tmp_path: Path, records: Path) -> None:
    logged = """echo '{"event": "step_began", "step": "one"}'; echo '{"event": "other"}'"""
    script = f"{logged}; sleep 5.5; touch a.ready; exec sleep 99"
    spec = dataclasses.replace(_spec(tmp_path, "a", script), doing={"step_began step=one": "making it (once)"})
    said: list[str] = []
    supervisor = Supervisor(records, said.append)
    async with asyncio.TaskGroup() as group:
        await supervisor.start(spec, group)
        await supervisor.stop()
    assert said[0] == "a is starting (5 s): making it (once)"


async def test_a_death_is_told_in_plain_words(tmp_path: Path, records: Path) -> None:
    said: list[str] = []
    supervisor = Supervisor(records, said.append)
    async with asyncio.TaskGroup() as group:
        await supervisor.start(_steady(tmp_path, "a"), group)
        os.kill(_record(records, "a").pid, signal.SIGKILL)
        await _until(records, "a", restarts=1)
        await supervisor.stop()
    assert said[1:3] == [f"a was ended by SIGKILL; starting it again. Its log: {tmp_path / 'a.log'}", "a is up again"]


async def test_one_that_is_never_ready_fails_the_start_and_is_stopped(tmp_path: Path, records: Path) -> None:
    supervisor = Supervisor(records, lambda _: None)
    async with asyncio.TaskGroup() as group:
        with pytest.raises(Unavailable, match="is not ready after"):
            await supervisor.start(_spec(tmp_path, "a", "exec sleep 1000", start_timeout_s=0.3), group)
        pid = _record(records, "a").pid
        await supervisor.stop()
    assert start_time(pid) is None


async def test_what_a_killed_supervisor_left_is_stopped_and_strangers_are_not(tmp_path: Path, records: Path) -> None:
    ours, stranger = spawn(["sleep", "1000"], log=None), spawn(["sleep", "1000"], log=None)
    try:
        for name, pid, started in (
            ("ours", ours.ref.pid, ours.ref.start_time),
            ("reused", stranger.ref.pid, stranger.ref.start_time - 1),
        ):
            record = Record(name=name, pid=pid, start_time=started, state="ready", restarts=0, since=0)
            (records / f"{name}.json").write_text(record.model_dump_json())
        assert await stop_leftovers(records) == ["ours"]
        assert not ours.alive
        assert stranger.alive
        assert read_records(records) == []
    finally:
        await stranger.stop(1)
        await ours.stop(1)
