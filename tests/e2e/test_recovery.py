"""kill -9 of any process, at any time: running sandboxes live on, the truth is told, nothing is lost or left over."""

import asyncio
import base64
import functools
import json
import os
import signal
import time
from pathlib import Path

import httpx2
import pytest
from tests.support.deployment import Deployment, eventually, vmm_pids, vms

from space.host.command import run

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


async def _answers(space: Deployment, sandbox: str) -> bool:
    answer = await space.http.get(f"/v1/sandboxes/{sandbox}/files", params={"path": "/etc/hostname"})
    return answer.status_code == 200


async def _boot_id(space: Deployment, sandbox: str) -> str:
    code, output = await space.run(sandbox, BOOT_ID)
    assert code == 0
    return output


async def test_worker_killed_under_a_running_command(space: Deployment, sandbox: str) -> None:
    before = await _boot_id(space, sandbox)
    base = f"/v1/sandboxes/{sandbox}/commands"
    script = "for i in 1 2 3; do echo $i; done; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo last"
    command = (await space.http.post(base, json={"cmd": script, "detach": True})).json()["command_id"]
    worker = space.daemon_pid("worker")
    os.kill(worker, signal.SIGKILL)
    await eventually(lambda: _answers(space, sandbox), within_s=5, what="the sandbox answers again")
    await eventually(lambda: space.daemon_ready("worker", worker), within_s=15, what="a new worker is ready")
    assert (await space.http.put(f"/v1/sandboxes/{sandbox}/files", params={"path": "/tmp/go"})).is_success
    text = (await space.http.get(f"{base}/{command}/output", params={"from": 6})).text
    lines = [json.loads(line) for line in text.splitlines()]
    assert b"".join(base64.b64decode(x["data"]) for x in lines if x["type"] == "stdout") == b"last\n"
    assert await _boot_id(space, sandbox) == before, "another VM answers for the sandbox"
    made = await space.create()  # and the new worker works
    await space.delete(made)


async def test_vmm_killed_shows_as_failed_and_ends_open_streams(space: Deployment) -> None:
    known = set(vmm_pids(space.data))
    made = await space.create()
    (pid,) = set(vmm_pids(space.data)) - known
    ended = asyncio.Event()

    async def read() -> None:
        try:
            async for line in space.lines(made, cmd="echo up; sleep 600"):
                if line["type"] == "stdout":
                    os.kill(pid, signal.SIGKILL)
        except httpx2.TransportError:
            pass
        ended.set()

    async with asyncio.TaskGroup() as group:
        reader = group.create_task(read())

        async def failed() -> bool:
            return bool((await space.state(made))["state"] == "failed")

        await eventually(failed, within_s=20, what="the API says failed")
        async with asyncio.timeout(2):
            await ended.wait()
        reader.cancel()
    row = await space.state(made)
    # a spare that a former worker process made is not this one's child: how it ended is its parent's to know
    assert "SIGKILL" in row["reason"] or "worker had been restarted" in row["reason"], row
    answer = await space.http.post(f"/v1/sandboxes/{made}/commands", json={"cmd": "true"})
    assert (answer.status_code, answer.json()["code"]) == (409, "sandbox_failed")
    assert row["reason"] in answer.json()["detail"]
    await space.delete(made)


async def test_vmm_that_hangs_is_ended_and_told(space: Deployment) -> None:
    made = await space.create()
    os.kill(vms(space.data)[made]["pid"], signal.SIGSTOP)

    async def failed() -> bool:
        return bool((await space.state(made))["state"] == "failed")

    await eventually(failed, within_s=90, what="the API says failed")
    assert "stopped answering" in (await space.state(made))["reason"]
    await space.delete(made)


async def test_a_guest_that_does_not_listen_is_paused_all_the_same(space: Deployment) -> None:
    """Nor does anything that fails later have it go on: it ran for as long as its disk was to be brought to rest."""
    made = await space.create()
    await space.run(made, "nohup sh -c 'while :; do :; done' >/dev/null 2>&1 &")
    vm = vms(space.data)[made]
    slot = ("ip", "-n", f"space-{space.run_dir.name}-s{vm['slot']}", "link", "set", "tap0")

    async def stands_still() -> bool:
        def ticks() -> int:
            return sum(map(int, Path(f"/proc/{vm['pid']}/stat").read_text().rpartition(")")[2].split()[11:13]))

        before = ticks()
        await asyncio.sleep(1)  # a busy guest takes a hundred in that
        return ticks() - before < 10

    assert not await stands_still()
    await run(*slot, "down")
    assert (await space.order(made, "pause"))["state"] == "paused"
    assert await stands_still()
    answer = await space.http.post(f"/v1/sandboxes/{made}/snapshots", json={"memory": False})
    assert (answer.status_code, answer.json()["code"]) == (409, "disk_not_at_rest")
    assert (await space.state(made))["state"] == "paused"
    assert await stands_still()
    await run(*slot, "up")
    await space.order(made, "resume")
    assert abs(float(await space.output(made, "date +%s.%N")) - time.time()) < 2
    await space.delete(made)


async def test_guest_that_powers_off_shows_as_failed(space: Deployment) -> None:
    made = await space.create()
    await space.http.post(
        f"/v1/sandboxes/{made}/commands", json={"cmd": "sudo sh -c 'echo b > /proc/sysrq-trigger'", "detach": True}
    )

    async def failed() -> bool:
        return bool((await space.state(made))["state"] == "failed")

    await eventually(failed, within_s=15, what="the API says failed")
    await space.delete(made)


@pytest.mark.parametrize("name", ["gateway", "redactor", "ingress", "egress", "api", "edge", "postgres"])
async def test_server_process_killed(space: Deployment, sandbox: str, name: str) -> None:
    before = await _boot_id(space, sandbox)
    pid = space.daemon_pid(name)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: space.daemon_ready(name, pid), within_s=30, what=f"{name} is back")
    await eventually(lambda: _answers(space, sandbox), within_s=10, what="the sandbox answers")
    assert await _boot_id(space, sandbox) == before

    async def creates() -> str | None:
        answer = await space.http.post("/v1/sandboxes", json={"template": "base"})
        return str(answer.json()["id"]) if answer.status_code == 201 else None

    made = await eventually(creates, within_s=30, what="a create works")
    await space.delete(str(made))


async def test_killed_in_the_middle_of_a_create(space: Deployment) -> None:
    """The wish is in the database: whatever dies, the sandbox comes to run or is told as failed, and can be deleted."""
    for name in ("worker", "api"):
        answer = await space.http.post("/v1/sandboxes", params={"wait": "0"}, json={"template": "base"})
        made = answer.json()["sandbox_id"]
        pid = space.daemon_pid(name)
        os.kill(pid, signal.SIGKILL)
        back = functools.partial(space.daemon_ready, name, pid)
        await eventually(back, within_s=30, what=f"{name} is back")

        async def runs(wanted: str = made) -> bool:
            return bool((await space.state(wanted))["state"] == "running")

        await eventually(runs, within_s=60, what=f"the sandbox runs although the {name} was killed")
        assert await space.run(made, "echo here") == (0, "here\n")
        await space.delete(made)


async def test_up_killed_and_up_stopped_leave_vms_for_the_next(space: Deployment) -> None:
    made = await space.create()
    before = await _boot_id(space, made)
    space.kill_up()
    await space.up()
    assert await _boot_id(space, made) == before
    assert await space.stop() == 0
    assert vmm_pids(space.data), "stopping SPACE ended the VM"
    await space.up()
    assert await _boot_id(space, made) == before
    await space.delete(made)


async def test_second_up_on_one_data_folder_refuses(space: Deployment) -> None:
    status, out, err = await space.cli("up", "--data", str(space.data), "--port", "0")
    assert status != 0
    assert "already runs" in out + err


async def test_nothing_is_left_of_deleted_sandboxes(space: Deployment) -> None:
    made = [await space.create() for _ in range(3)]
    held = {sandbox: vms(space.data)[sandbox] for sandbox in made}
    for sandbox in made:
        await space.delete(sandbox)
    for sandbox, vm in held.items():
        assert not (space.data / "disk" / "vms" / vm["vm"]).exists()
        assert not (space.data / "mem" / "vms" / vm["vm"]).exists()
        assert not (space.data / "worker" / "ledger" / f"{sandbox}.json").exists()
        assert not Path(f"/proc/{vm['pid']}").exists()
        assert not Path("/run/netns", f"space-{space.run_dir.name}-s{vm['slot']}").exists()


async def test_a_damaged_record_costs_one_sandbox_and_is_told(space: Deployment, sandbox: str) -> None:
    """The worker did not start any more; and what a damaged one had in storage went with the next sweep."""
    lost = await space.create()
    await space.order(lost, "suspend")
    worker = space.daemon_pid("worker")
    os.kill(worker, signal.SIGSTOP)  # nothing is written between the harm and the end
    (record,) = space.data.glob(f"worker/**/{lost}.json")
    told = json.loads(record.read_text())
    record.write_text(json.dumps(told | {"generation": -1, "vm": {"slot": 2**30}}))
    os.kill(worker, signal.SIGKILL)
    await eventually(lambda: space.daemon_ready("worker", worker), within_s=60, what="a new worker is ready")
    assert await space.output(sandbox, "echo here") == "here"

    async def failed() -> bool:
        return bool((await space.state(lost))["state"] == "failed")

    await eventually(failed, within_s=30, what="the API says failed")
    assert "record of it is damaged" in (await space.state(lost))["reason"]
    stored = space.data / "disk" / "frozen" / f"s-{lost}-1"
    assert stored.is_dir()
    assert record.with_suffix(".damaged").exists()
    await space.delete(lost)
    assert not stored.exists()
    assert not list(space.data.glob(f"worker/**/{lost}.*"))


async def test_a_guest_without_a_network_ends_its_requests(space: Deployment, sandbox: str) -> None:
    """They hung for as long as TCP tries, and those that only wait for an answer for ever."""
    cut = "sleep 1; ip link set eth0 down; sleep 600"
    began = asyncio.get_running_loop().time()
    with pytest.raises((AssertionError, httpx2.TransportError)):
        async with asyncio.timeout(90):
            await space.run(sandbox, cut, user="root")
    async with asyncio.timeout(90):
        answer = await space.http.get(f"/v1/sandboxes/{sandbox}/files", params={"path": "/etc/hostname"})
    assert (answer.status_code, answer.json()["code"]) == (503, "sandbox_unreachable")
    assert asyncio.get_running_loop().time() - began > 1
    assert (await space.state(sandbox))["state"] == "running"
