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
from tests.support.witness import Witness

COUNTER = "i=0; while :; do i=$((i+1)); echo $i > /dev/shm/count; sleep 0.05; done"


async def _order(space: Deployment, sandbox: str, verb: str, **body: object) -> dict[str, object]:
    answer = await space.http.post(f"/v1/sandboxes/{sandbox}/{verb}", json=body)
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, object] = answer.json()
    return found


async def _state(space: Deployment, sandbox: str) -> str:
    return str((await space.state(sandbox))["state"])


async def _is(space: Deployment, sandbox: str, wanted: str) -> bool:
    return await _state(space, sandbox) == wanted


async def _output(space: Deployment, sandbox: str, command: str) -> str:
    code, output = await space.run(sandbox, command)
    assert code == 0, output
    return output.strip()


async def _background(space: Deployment, sandbox: str, command: str) -> str:
    answer = await space.http.post(f"/v1/sandboxes/{sandbox}/commands", json={"cmd": command, "detach": True})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["command_id"])


async def test_pause_stops_everything_and_resume_tells_the_time(space: Deployment, sandbox: str) -> None:
    await _background(space, sandbox, COUNTER)
    await eventually(lambda: _output(space, sandbox, "cat /dev/shm/count || echo"), within_s=20, what="it counts")
    assert (await _order(space, sandbox, "pause"))["state"] == "paused"
    assert (await _order(space, sandbox, "pause"))["state"] == "paused", "pausing twice is one pause"
    await asyncio.sleep(2)  # the guest's clock would be behind by this
    assert (await _order(space, sandbox, "resume"))["state"] == "running"
    before, guest, after = await _clocks(space, sandbox)
    assert before - 1 <= guest <= after + 1


async def _clocks(space: Deployment, sandbox: str) -> tuple[float, float, float]:
    before = time.time()
    guest = float(await _output(space, sandbox, "date +%s.%N"))
    return before, guest, time.time()


async def test_five_cycles_lose_nothing(space: Deployment, sandbox: str) -> None:
    """Files written just before, memory, a background counter and its output; each cycle, not only the first."""
    counter = await _background(space, sandbox, COUNTER)
    last = 0
    for cycle in range(5):
        script = (
            f"head -c 1000000 /dev/urandom | tee /home/user/f{cycle} > /dev/shm/f{cycle}; sha256sum < /dev/shm/f{cycle}"
        )
        digest = await _output(space, sandbox, script)
        suspended = await _order(space, sandbox, "suspend")
        assert suspended["state"] == "suspended"
        assert sandbox not in vms(space.data), "a suspended sandbox holds a VM"
        assert (await _order(space, sandbox, "restore"))["state"] == "running"
        found = await _output(
            space, sandbox, f"sha256sum < /home/user/f{cycle}; sha256sum < /dev/shm/f{cycle}; cat /dev/shm/count"
        )
        on_disk, in_memory, count = found.split("\n")
        assert (on_disk, in_memory) == (digest, digest)
        assert int(count) > last, "the counter went back or stood still"
        last = int(count)
        before, guest, after = await _clocks(space, sandbox)
        assert before - 1 <= guest <= after + 1
    listed = (await space.http.get(f"/v1/sandboxes/{sandbox}/commands/{counter}")).json()
    assert listed["running"] is True


async def test_disk_only_suspension_keeps_the_disk_and_boots(space: Deployment, sandbox: str) -> None:
    await _output(space, sandbox, "echo kept > /home/user/kept; echo gone > /dev/shm/gone")
    assert (await _order(space, sandbox, "suspend", memory=False))["state"] == "suspended"
    assert (await _order(space, sandbox, "restore"))["state"] == "running"
    assert await _output(space, sandbox, "cat /home/user/kept; ls /dev/shm | wc -l") == "kept\n0"


async def test_orders_that_meet_lose_none(space: Deployment, sandbox: str) -> None:
    """Resume during a suspension is not dropped; two at once restore once."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_order_any(space, sandbox, "suspend"))
        await asyncio.sleep(0.02)
        group.create_task(_order_any(space, sandbox, "resume"))
        group.create_task(_order_any(space, sandbox, "resume"))
    await eventually(functools.partial(_is, space, sandbox, "running"), within_s=60, what="it runs in the end")
    assert await _output(space, sandbox, "echo here") == "here"
    assert len([vm for vm in vms(space.data) if vm == sandbox]) == 1


async def _order_any(space: Deployment, sandbox: str, verb: str) -> int:
    return (await space.http.post(f"/v1/sandboxes/{sandbox}/{verb}", json={})).status_code


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.15])
async def test_no_transition_sticks_when_the_api_is_killed(space: Deployment, sandbox: str, delay_s: float) -> None:
    """The worker is killed at its steps in test_endurance_kills.py."""
    await _output(space, sandbox, "echo precious > /dev/shm/kept")
    for verb, wanted in (("suspend", "suspended"), ("restore", "running")):
        pid = space.daemon_pid("api")
        answer = await space.http.post(f"/v1/sandboxes/{sandbox}/{verb}", params={"wait": "0"}, json={})
        assert answer.status_code in (200, 202), answer.text
        await asyncio.sleep(delay_s)
        os.kill(pid, signal.SIGKILL)
        await eventually(functools.partial(space.daemon_ready, "api", pid), within_s=60, what="the api is back")
        await eventually(functools.partial(_is, space, sandbox, wanted), within_s=60, what=f"it is {wanted}")
    assert await _output(space, sandbox, "cat /dev/shm/kept") == "precious"


async def test_a_suspended_sandbox_is_deleted_and_leaves_nothing(space: Deployment) -> None:
    made = await space.create()
    await _order(space, made, "suspend")
    await space.delete(made)
    for area in ("disk", "mem"):
        assert not list((space.data / area / "frozen").glob(f"s-{made}-*"))


async def test_a_damaged_suspension_is_told_and_nothing_is_lost_with_it(space: Deployment) -> None:
    made = await space.create()
    await _order(space, made, "suspend")
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
    assert (await _order(space, made, "restore"))["state"] == "running"
    await space.delete(made)


async def test_forks_share_the_past_and_not_the_future(space: Deployment, sandbox: str) -> None:
    await _output(space, sandbox, "echo common > /dev/shm/past")
    forked = await _order(space, sandbox, "fork", count=2)
    children = [str(result["sandbox"]["id"]) for result in forked["results"]]  # type: ignore[attr-defined]
    everyone = [sandbox, *children]
    try:
        for one in everyone:
            assert await _output(space, one, "cat /dev/shm/past") == "common"
        script = "cat /etc/machine-id /proc/sys/kernel/random/uuid; hostname; head -c 16 /dev/urandom | base64"
        told = [(await _output(space, one, script)).split("\n") for one in everyone]
        for values in zip(*told, strict=True):
            assert len(set(values)) == len(everyone), values
        await _output(space, children[0], "echo changed > /dev/shm/past")
        assert await _output(space, sandbox, "cat /dev/shm/past") == "common"
    finally:
        for child in children:
            await space.delete(child)


async def test_a_snapshot_is_a_template(space: Deployment, sandbox: str) -> None:
    await _output(space, sandbox, "echo mine > /dev/shm/mine; echo disk > /home/user/disk")
    taken = await _order(space, sandbox, "snapshots", name="e2e-snapshot")
    made = await space.create(template="e2e-snapshot")
    try:
        assert await _output(space, made, "cat /dev/shm/mine /home/user/disk; hostname") == f"mine\ndisk\n{made}"
    finally:
        await space.delete(made)
    assert (await space.http.delete(f"/v1/snapshots/{taken['digest']}")).is_success


async def test_what_starts_from_a_template_is_ready(space: Deployment, sandbox: str) -> None:
    """The template's own check has run, and what it started runs, in a booted sandbox and in clones."""
    check = "#!/bin/sh\ntest -e /dev/shm/asked || { touch /dev/shm/asked; exit 1; }\nsetsid sleep 1000 &\n"
    await _output(
        space, sandbox, f"sudo mkdir -p /etc/space/hooks && printf '{check}' | sudo tee /etc/space/hooks/ready"
    )
    await _output(space, sandbox, "sudo chmod 755 /etc/space/hooks/ready && sync")
    taken = await _order(space, sandbox, "snapshots", name="e2e-ready", memory=False)
    for _ in range(2):
        made = await space.create(template="e2e-ready")
        assert await _output(space, made, "pgrep -xc sleep") == "1"
        await space.delete(made)
    assert (await space.http.delete(f"/v1/snapshots/{taken['digest']}")).is_success


async def test_idle_sandbox_is_put_away_and_wakes_on_a_request(space: Deployment) -> None:
    made = await space.create(idle_timeout_s=5)
    await _output(space, made, "echo asleep > /dev/shm/kept")
    await eventually(functools.partial(_is, space, made, "suspended"), within_s=20, what="it is put away")
    assert await _output(space, made, "cat /dev/shm/kept") == "asleep"
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
