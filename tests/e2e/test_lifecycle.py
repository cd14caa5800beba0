"""Pause, suspend, restore, fork, snapshots, idle time: what a user sees, on real microVMs."""

import asyncio
import functools
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.support.deployment import Deployment, eventually, vms
from tests.support.witness import COUNTER, Witness


async def _state(space: Deployment, sandbox: str) -> str:
    return str((await space.state(sandbox))["state"])


async def _is(space: Deployment, sandbox: str, wanted: str) -> bool:
    return await _state(space, sandbox) == wanted


async def test_pause_stops_everything_and_resume_tells_the_time(space: Deployment, sandbox: str) -> None:
    await space.background(sandbox, COUNTER)
    await eventually(lambda: space.output(sandbox, "cat /dev/shm/count || echo"), within_s=20, what="it counts")
    assert (await space.order(sandbox, "pause"))["state"] == "paused"
    assert (await space.order(sandbox, "pause"))["state"] == "paused", "pausing twice is one pause"
    await asyncio.sleep(2)  # the guest's clock would be behind by this
    assert (await space.order(sandbox, "resume"))["state"] == "running"
    before, guest, after = await _clocks(space, sandbox)
    assert before - 1 <= guest <= after + 1


async def _clocks(space: Deployment, sandbox: str) -> tuple[float, float, float]:
    before = time.time()
    guest = float(await space.output(sandbox, "date +%s.%N"))
    return before, guest, time.time()


async def test_disk_only_suspension_keeps_the_disk_and_boots(space: Deployment, sandbox: str) -> None:
    await space.output(sandbox, "echo kept > /home/user/kept; echo gone > /dev/shm/gone")
    assert (await space.order(sandbox, "suspend", memory=False))["state"] == "suspended"
    assert (await space.order(sandbox, "restore"))["state"] == "running"
    assert await space.output(sandbox, "cat /home/user/kept; ls /dev/shm | wc -l") == "kept\n0"


async def test_orders_that_meet_lose_none(space: Deployment, sandbox: str) -> None:
    """Resume during a suspension is not dropped; two at once restore once."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_order_any(space, sandbox, "suspend"))
        await asyncio.sleep(0.02)
        group.create_task(_order_any(space, sandbox, "resume"))
        group.create_task(_order_any(space, sandbox, "resume"))
    await eventually(functools.partial(_is, space, sandbox, "running"), within_s=60, what="it runs in the end")
    assert await space.output(sandbox, "echo here") == "here"
    assert len([vm for vm in vms(space.data) if vm == sandbox]) == 1


async def _order_any(space: Deployment, sandbox: str, verb: str) -> int:
    return (await space.http.post(f"/v1/sandboxes/{sandbox}/{verb}", json={})).status_code


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.15])
async def test_no_transition_sticks_when_the_api_is_killed(space: Deployment, sandbox: str, delay_s: float) -> None:
    """The worker is killed at its steps in test_endurance_kills.py."""
    await space.output(sandbox, "echo precious > /dev/shm/kept")
    for verb, wanted in (("suspend", "suspended"), ("restore", "running")):
        pid = space.daemon_pid("api")
        answer = await space.http.post(f"/v1/sandboxes/{sandbox}/{verb}", params={"wait": "0"}, json={})
        assert answer.status_code in (200, 202), answer.text
        await asyncio.sleep(delay_s)
        os.kill(pid, signal.SIGKILL)
        await eventually(functools.partial(space.daemon_ready, "api", pid), within_s=60, what="the api is back")
        await eventually(functools.partial(_is, space, sandbox, wanted), within_s=60, what=f"it is {wanted}")
    assert await space.output(sandbox, "cat /dev/shm/kept") == "precious"


async def test_a_suspended_sandbox_is_deleted_and_leaves_nothing(space: Deployment) -> None:
    made = await space.create()
    await space.order(made, "suspend")
    await space.delete(made)
    for area in ("disk", "mem"):
        assert not list((space.data / area / "frozen").glob(f"s-{made}-*"))


async def test_a_damaged_suspension_is_told_and_nothing_is_lost_with_it(space: Deployment) -> None:
    made = await space.create()
    await space.order(made, "suspend")
    folder = space.data / "disk" / "frozen" / f"s-{made}-1"

    def digests() -> bool:
        return json.loads((folder / "manifest.json").read_text())["digests"] is not None

    await eventually(digests, within_s=60, what="it is durable")
    state = folder / "state"
    whole = state.read_bytes()
    state.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    answer = await space.http.post(f"/v1/sandboxes/{made}/restore", json={})
    assert (answer.status_code, answer.json()["code"]) == (409, "snapshot_damaged"), answer.text
    assert await _state(space, made) == "suspended"
    state.write_bytes(whole)
    assert (await space.order(made, "restore"))["state"] == "running"
    await space.delete(made)


async def test_forks_share_the_past_and_not_the_future(space: Deployment, sandbox: str) -> None:
    await space.output(sandbox, "echo common > /dev/shm/past")
    forked = await space.order(sandbox, "fork", count=2)
    children = [str(result["sandbox"]["id"]) for result in forked["results"]]
    everyone = [sandbox, *children]
    try:
        for one in everyone:
            assert await space.output(one, "cat /dev/shm/past") == "common"
        script = "cat /etc/machine-id /proc/sys/kernel/random/uuid; hostname; head -c 16 /dev/urandom | base64"
        told = [(await space.output(one, script)).split("\n") for one in everyone]
        for values in zip(*told, strict=True):
            assert len(set(values)) == len(everyone), values
        await space.output(children[0], "echo changed > /dev/shm/past")
        assert await space.output(sandbox, "cat /dev/shm/past") == "common"
    finally:
        for child in children:
            await space.delete(child)


async def test_a_snapshot_is_a_template(space: Deployment, sandbox: str) -> None:
    await space.output(sandbox, "echo mine > /dev/shm/mine; echo disk > /home/user/disk")
    taken = await space.order(sandbox, "snapshots", name="e2e-snapshot")
    made = await space.create(template="e2e-snapshot")
    try:
        assert await space.output(made, "cat /dev/shm/mine /home/user/disk; hostname") == f"mine\ndisk\n{made}"
    finally:
        await space.delete(made)
    assert (await space.http.delete(f"/v1/snapshots/{taken['digest']}")).is_success


async def test_what_starts_from_a_template_is_ready(space: Deployment, sandbox: str) -> None:
    """The template's own check has run, and what it started runs, in a booted sandbox and in clones."""
    check = "#!/bin/sh\ntest -e /dev/shm/asked || { touch /dev/shm/asked; exit 1; }\nsetsid sleep 1000 &\n"
    await space.output(sandbox, f"sudo mkdir -p /etc/space/hooks && printf '{check}' | sudo tee /etc/space/hooks/ready")
    await space.output(sandbox, "sudo chmod 755 /etc/space/hooks/ready && sync")
    taken = await space.order(sandbox, "snapshots", name="e2e-ready", memory=False)
    for _ in range(2):
        made = await space.create(template="e2e-ready")
        assert await space.output(made, "pgrep -xc sleep") == "1"
        await space.delete(made)
    assert (await space.http.delete(f"/v1/snapshots/{taken['digest']}")).is_success


async def test_no_snapshot_loses_what_is_in_memory_only(space: Deployment, sandbox: str) -> None:
    """The disk of one that was suspended with its memory lacks what it had not yet written there: files were empty."""
    await space.output(sandbox, "echo new > /home/user/new")
    await space.order(sandbox, "suspend")
    answer = await space.http.post(f"/v1/sandboxes/{sandbox}/snapshots", json={"memory": False})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), answer.text
    await space.order(sandbox, "restore")
    taken = await space.order(sandbox, "snapshots", memory=False)
    made = await space.create(template=taken["digest"])
    assert await space.output(made, "cat /home/user/new") == "new"
    await space.delete(made)
    assert (await space.http.delete(f"/v1/snapshots/{taken['digest']}")).is_success


async def test_idle_sandbox_is_put_away_and_wakes_on_a_request(space: Deployment) -> None:
    made = await space.create(idle_timeout_s=5)
    await space.output(made, "echo asleep > /dev/shm/kept")
    await eventually(functools.partial(_is, space, made, "suspended"), within_s=20, what="it is put away")
    assert await space.output(made, "cat /dev/shm/kept") == "asleep"
    assert await _state(space, made) == "running"
    await space.delete(made)


async def test_what_puts_itself_away_loses_no_more_than_what_is_put_away(space: Deployment, rng: random.Random) -> None:
    """Files, memory, what runs in the background, the clock; and it is told that a request had to wait for it."""
    made = await space.create(idle_timeout_s=3)
    witness = Witness(space, made, rng)
    await witness.begin()
    await witness.write()
    await eventually(functools.partial(_is, space, made, "suspended"), within_s=60, what="it is put away")
    assert (await space.state(made))["reason"] == "idle for 3 s"
    await witness.check()
    row = await space.state(made)
    assert (row["state"], row["reason"], row["idle_timeout_s"]) == ("running", "woken by a request", 3)
    assert row["timings_ms"]["restore"] > 0
    await space.delete(made)


async def test_a_running_foreground_command_is_not_idle(space: Deployment) -> None:
    made = await space.create(idle_timeout_s=2)
    lines = [line async for line in space.lines(made, cmd="sleep 7; echo still here")]
    assert lines[-1]["code"] == 0
    await space.delete(made)


async def test_no_spare_or_frozen_vm_is_left_behind(space: Deployment) -> None:
    """After all of the above: what lies on the memory area belongs to a template, a spare or a live sandbox."""
    live = {vm["vm"] for vm in vms(space.data).values()}
    spares = {path.stem for path in (space.data / "worker" / "spares").glob("*.json")}
    folders = {path.name for path in (space.data / "mem" / "vms").iterdir()}
    assert folders <= live | spares
    assert all(path.name.startswith("t-") for path in (space.data / "mem" / "frozen").iterdir())
    assert Path(space.data / "disk" / "frozen").is_dir()
