"""Whatever clients ask for while whatever process is killed: nothing is lost, nothing sticks, nothing is left over."""

import random
import subprocess

from tests.support.chaos import KILLED, Chaos
from tests.support.deployment import Deployment, eventually
from tests.support.inventory import until_equal

CLIENTS = 4


def _mounts(space: Deployment) -> set[str]:
    """Return what the deployment has mounted, and its loop devices; namespaces are counted by the inventory."""
    mounts = subprocess.run(["findmnt", "-rno", "TARGET"], capture_output=True, text=True, check=True).stdout
    loops = subprocess.run(["losetup", "-lnO", "NAME,BACK-FILE"], capture_output=True, text=True, check=True).stdout
    ours = (str(space.data), str(space.run_dir))
    return {line for line in (*mounts.splitlines(), *loops.splitlines()) if any(path in line for path in ours)}


async def _sandboxes(space: Deployment, label: str) -> dict[str, str]:
    answer = await space.http.get("/v1/sandboxes", params={"limit": 1000, "label": f"chaos:{label}"})
    return {one["id"]: one["state"] for one in answer.json()["sandboxes"]}


async def test_host_and_database_agree_after_chaos(space: Deployment, rng: random.Random, full: bool) -> None:
    operations, kills = (200, 16) if full else (60, 5)
    mounts = _mounts(space)
    chaos = Chaos(space, rng, label=f"{rng.getrandbits(32):08x}")
    await until_equal(space, "before")
    await chaos.run(operations, kills, CLIENTS)
    for name in KILLED:
        await eventually(lambda name=name: space.daemon_ready(name, -1), within_s=60, what=f"{name} is back")  # type: ignore[misc]
    await until_equal(space, "after chaos")
    print(f"answered {chaos.answered}; refused {chaos.refused}; killed {chaos.kills}")  # noqa: T201

    states = await _sandboxes(space, chaos.label)
    assert "failed" not in states.values(), "only server processes were killed, and a VM is lost"
    known = {subject.id: subject for subject in (*chaos.subjects, *chaos.doomed)}
    assert {subject.id for subject in chaos.subjects} <= states.keys()
    assert chaos.deleted.isdisjoint(states)
    for one in sorted(states, key=lambda one: states[one] == "suspended"):  # those that hold memory first
        await space.order(one, "resume")
        if one in known:
            await chaos.check(known[one])
        await space.delete(one)
    for name in [one["name"] for one in (await space.http.get("/v1/snapshots")).json()["snapshots"]]:
        assert (await space.http.delete(f"/v1/snapshots/{name}")).is_success
    assert not await _sandboxes(space, chaos.label)
    await until_equal(space, "after all was deleted")
    assert _mounts(space) <= mounts, "something is mounted that was not before"
