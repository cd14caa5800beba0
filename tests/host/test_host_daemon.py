"""Long-lived processes: who they are, what they inherit, how they are found again and ended."""

import asyncio
import signal
from pathlib import Path

from space.host.daemon import User, spawn
from space.host.process import ProcessRef, start_time, uid_processes, watch

_UID = 0x7FFF_0001
"""In the last range of user ids, far from any instance that a test makes."""


async def test_a_daemon_has_its_user_and_nothing_more(tmp_path: Path) -> None:
    log = tmp_path / "log"
    daemon = spawn(
        ["sh", "-c", "grep -E '^(Uid|Gid|Groups|CapEff|CapBnd|NoNewPrivs)' /proc/self/status; env; ulimit -c"],
        log=log,
        user=User(_UID, _UID, (_UID + 5,)),
        env={"GIVEN": "1"},
    )
    assert await daemon.wait() == 0
    said = log.read_text().split("\n")
    fields = {line.split(":")[0]: line.split(":")[1].split() for line in said if ":\t" in line}
    assert fields["Uid"] == fields["Gid"] == [str(_UID)] * 4
    assert fields["Groups"] == [str(_UID + 5)]
    assert fields["CapEff"] == fields["CapBnd"] == ["0" * 16]
    assert fields["NoNewPrivs"] == ["1"]
    assert {line.split("=")[0] for line in said if "=" in line} <= {
        "PATH",
        "LC_ALL",
        "GIVEN",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
    }
    assert said[-2] == "0"  # no core dumps


async def test_a_daemon_has_a_session_of_its_own(tmp_path: Path) -> None:
    daemon = spawn(["sleep", "1000"], log=None)
    try:
        stat = Path(f"/proc/{daemon.ref.pid}/stat").read_text()
        assert int(stat[stat.rindex(")") + 2 :].split()[3]) == daemon.ref.pid
    finally:
        await daemon.stop(1)


async def test_its_exit_status_or_signal_is_known() -> None:
    assert await spawn(["sh", "-c", "exit 5"], log=None).wait() == 5
    killed = spawn(["sleep", "1000"], log=None)
    killed.send(signal.SIGKILL)
    assert await killed.wait() == -signal.SIGKILL
    assert not killed.alive
    killed.send(signal.SIGTERM)  # gone: nothing happens


async def test_stop_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    log = tmp_path / "log"
    stubborn = spawn(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"], log=log)
    async with asyncio.timeout(10):
        while "ready" not in log.read_text():
            await asyncio.sleep(0.01)
    await stubborn.stop(0.2)
    assert await stubborn.wait() == -signal.SIGKILL


async def test_a_recorded_process_is_found_again_and_another_with_its_pid_is_not() -> None:
    daemon = spawn(["sleep", "1000"], log=None)
    ref = daemon.ref
    try:
        again = watch(ref)
        assert again is not None
        assert again.alive
        again.release()
        assert watch(ProcessRef(ref.pid, ref.start_time + 1)) is None
    finally:
        await daemon.stop(1)
    assert watch(ref) is None
    assert start_time(ref.pid) is None


async def test_a_released_process_lives_on() -> None:
    daemon = spawn(["sleep", "1000"], log=None)
    daemon.release()
    again = watch(daemon.ref)
    assert again is not None
    await again.stop(1)


async def test_processes_are_found_by_user_id() -> None:
    user = User(_UID + 7, _UID + 7)
    daemon = spawn(["sleep", "1000"], log=None, user=user)
    try:
        async with asyncio.timeout(5):  # setpriv takes a moment to change the user
            while uid_processes(range(_UID + 7, _UID + 8)) != [daemon.ref]:
                await asyncio.sleep(0.01)
    finally:
        await daemon.stop(1)
    assert uid_processes(range(_UID + 7, _UID + 8)) == []


def test_a_program_that_is_not_there_is_an_error_of_the_daemon_not_of_us(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def act() -> int | None:
        return await spawn(["/nonexistent/program"], log=log).wait()

    with asyncio.Runner() as runner:
        assert runner.run(act()) not in (0, None)
    assert "/nonexistent/program" in log.read_text()
