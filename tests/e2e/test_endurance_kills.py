"""kill -9 of the worker at its steps, in the middle of everything that it can be in the middle of."""

import asyncio
import dataclasses
import functools
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.support.deployment import Deployment, Json, eventually
from tests.support.inventory import until_equal
from tests.support.strace import followed

STEPS = ("rename", "renameat2", "unlink", "sendmsg", "sendto", "pidfd_send_signal", "vfork")
"""How the worker acts: it writes a record or moves a file, forgets one, orders a VMM, kills one, starts a program."""

TOKEN = "/dev/shm/token"
_DONE_S = 10.0
_FEWEST_KILLS = 3
"""Suspension, restore, fork, create and snapshot write 17 records or so."""


@dataclasses.dataclass(slots=True)
class Cast:
    """Sandboxes that something is done to at once. All but `asleep` run; each remembers its own name in memory."""

    space: Deployment
    copied: str
    forked: str
    awake: str
    asleep: str

    async def act(self) -> None:
        """Suspend one, restore another, fork a third, freeze a fourth as a template, create a fifth: all at once."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask("create", "/v1/sandboxes", {"template": "base"}))
            group.create_task(self._ask("fork", f"/v1/sandboxes/{self.forked}/fork", {}))
            group.create_task(self._ask("snapshot", f"/v1/sandboxes/{self.copied}/snapshots", {"name": "e2e-kills"}))
            group.create_task(self._ask("suspend", f"/v1/sandboxes/{self.awake}/suspend", {}))
            group.create_task(self._ask("restore", f"/v1/sandboxes/{self.asleep}/restore", {}))

    async def _ask(self, name: str, path: str, body: Json) -> None:
        answer = await self.space.http.post(path, json=body)
        assert answer.is_success or answer.json()["code"] in ("unavailable", "no_capacity"), (name, answer.text)

    async def check(self) -> None:
        """See that each is where it was to be with what it remembers; then have what was made go, and swap roles."""
        own = (self.copied, self.forked, self.awake, self.asleep)
        states = await _states(self.space)
        assert {one: states[one] for one in own} == dict.fromkeys(own, "running") | {self.awake: "suspended"}
        for one in (self.copied, self.forked, self.asleep):
            assert await self.space.output(one, f"cat {TOKEN}") == one
        for one in states.keys() - set(own):
            parent = (await self.space.state(one))["parent"]
            assert await self.space.output(one, f"cat {TOKEN} 2>/dev/null || true") == (parent or "")
            await self.space.delete(one)
        await _delete_snapshots(self.space)
        self.awake, self.asleep = self.asleep, self.awake


async def _states(space: Deployment) -> dict[str, str]:
    listed = (await space.http.get("/v1/sandboxes")).json()["sandboxes"]
    return {one["id"]: one["state"] for one in listed}


async def _delete_snapshots(space: Deployment) -> None:
    for one in (await space.http.get("/v1/snapshots")).json()["snapshots"]:
        assert (await space.http.delete(f"/v1/snapshots/{one['digest']}")).is_success


async def _sandbox(space: Deployment) -> str:
    made = await space.create()
    await space.output(made, f"echo {made} > {TOKEN}")
    return made


async def _until_back(space: Deployment, pid: int) -> None:
    await eventually(functools.partial(space.daemon_ready, "worker", pid), within_s=60, what="the worker is back")


async def test_killed_in_the_middle_of_everything(space: Deployment, tmp_path: Path, full: bool) -> None:
    """Before every third record (sixth in the short run) that the worker writes, five sandboxes at something."""
    copied, forked, awake, asleep = own = [await _sandbox(space) for _ in range(4)]
    cast = Cast(space, copied, forked, awake, asleep)
    try:
        await space.order(cast.asleep, "suspend")
        async with followed(space.daemon_pid("worker"), tmp_path / "whole", "rename") as whole:
            await cast.act()
        await until_equal(space, "nobody was killed")
        await cast.check()
        kills = 0
        for number in range(2, whole.calls()["rename"], 3 if full else 6):
            pid = space.daemon_pid("worker")
            async with followed(pid, tmp_path / str(number), "rename", kill_at=number) as step:
                await cast.act()
                killed = await step.killed(_DONE_S)
            if not killed:  # it had less to write this time, since no spare was made meanwhile
                break
            kills += 1
            await _until_back(space, pid)
            await until_equal(space, f"killed at {step.last()}")
            await cast.check()
        assert kills >= _FEWEST_KILLS
    finally:
        for one in own:
            await space.delete(one)


async def test_a_copy_that_is_cut_off_leaves_the_original_running(
    space: Deployment, sandbox: str, tmp_path: Path
) -> None:
    """Killed once its vCPUs are stopped. The next worker took it over like that: it was `running`, and stood still."""
    pid = space.daemon_pid("worker")
    async with followed(pid, tmp_path / "log", "sendmsg", kill_at=1) as step:
        await space.http.post(f"/v1/sandboxes/{sandbox}/fork", json={})
        assert await step.killed(_DONE_S)
    await _until_back(space, pid)
    await until_equal(space, f"killed at {step.last()}")
    assert await space.output(sandbox, "echo here") == "here"
    for one in (await _states(space)).keys() - {sandbox}:
        await space.delete(one)


@dataclasses.dataclass(frozen=True, slots=True)
class Verb:
    """Something that is done to a sandbox: what comes before it, the request, and the state that it must end in.

    `after` None: it is gone.
    """

    before: tuple[str, ...]
    path: str
    body: Json
    after: str | None


VERBS = {
    "create": Verb((), "/v1/sandboxes", {"template": "base"}, "running"),
    "pause": Verb((), "/pause", {}, "paused"),
    "resume": Verb(("pause",), "/resume", {}, "running"),
    "suspend": Verb((), "/suspend", {}, "suspended"),
    "suspend a paused one": Verb(("pause",), "/suspend", {}, "suspended"),
    "suspend its disk": Verb((), "/suspend", {"memory": False}, "suspended"),
    "restore": Verb(("suspend",), "/restore", {}, "running"),
    "fork": Verb((), "/fork", {}, "running"),
    "fork a paused one": Verb(("pause",), "/fork", {}, "paused"),
    "fork a suspended one": Verb(("suspend",), "/fork", {}, "suspended"),
    "snapshot": Verb((), "/snapshots", {"name": "e2e-kills"}, "running"),
    "snapshot of its disk": Verb((), "/snapshots", {"name": "e2e-kills", "memory": False}, "running"),
    "delete": Verb((), "", {}, None),
    "delete a suspended one": Verb(("suspend",), "", {}, None),
}


async def _prepared(space: Deployment, verb: Verb) -> str:
    sandbox = await _sandbox(space)
    for before in verb.before:
        await space.order(sandbox, before)
    return sandbox


async def _do(space: Deployment, sandbox: str, verb: Verb) -> None:
    path = verb.path if verb.path.startswith("/v1") else f"/v1/sandboxes/{sandbox}{verb.path}"
    method = "POST" if verb.path else "DELETE"
    answer = await space.http.request(method, path, json=verb.body if verb.path else None)
    assert answer.is_success or answer.json()["code"] == "unavailable", answer.text


async def _check(space: Deployment, sandbox: str, verb: Verb) -> None:
    """See that it is where it was to be, with what it remembers; then leave nothing."""
    states = await _states(space)
    assert states.get(sandbox) == verb.after
    forgets = verb.after == "suspended" and not verb.body.get("memory", True)
    for one in states:
        if one == sandbox:
            await space.order(one, "resume")
        knows = sandbox if one == sandbox and not forgets else (await space.state(one))["parent"]
        assert await space.output(one, f"cat {TOKEN} 2>/dev/null || true") == (knows or "")
        await space.delete(one)
    await _delete_snapshots(space)
    await until_equal(space, "all was deleted")


@pytest.fixture(scope="module")
async def without_spares(space: Deployment, pytestconfig: pytest.Config) -> AsyncGenerator[Deployment]:
    """The deployment with a worker that makes no spares: what it does is what it is asked for, the same each time."""
    if not pytestconfig.getoption("--full"):
        pytest.skip("takes half an hour in all: part of `scripts/test endurance`")
    await _restart(space, spares=0)
    yield space
    await _restart(space, spares=2)


async def _restart(space: Deployment, *, spares: int) -> None:
    await space.stop()
    space.settings["SPACE_WARM_POOL"] = str(spares)
    await space.up()


async def _kill_at_every_step(space: Deployment, folder: Path, name: str, verb: Verb) -> None:
    """Kill the worker before each call that changes something, as often as it makes one when nobody kills it."""
    sandbox = await _prepared(space, verb)
    async with followed(space.daemon_pid("worker"), folder / "whole", *STEPS) as whole:
        await _do(space, sandbox, verb)
    await until_equal(space, "nobody was killed")
    await _check(space, sandbox, verb)
    kills = 0
    for kind, acts in whole.acts().items():
        numbers = [number for number, act in enumerate(acts, 1) if act]
        left = set(range(len(numbers)))
        for shift in (0, 1, -1, 2, -2):  # where it was other than the first time: a heartbeat more, a look less
            for step in sorted(left):
                if step in left and numbers[step] + shift > 0:
                    at = numbers[step] + shift
                    met = await _killed_once(space, folder / f"{kind}-{at}-{shift}", name, verb, kind, at)
                    kills += met is not None
                    left.discard(step if met is None else met)
        print(f"{name}: {kind} {len(numbers)} of {len(acts)}, not met {sorted(left)}")  # noqa: T201 - what was tried
    print(f"{name}: {kills} kills")  # noqa: T201
    assert kills >= _FEWEST_KILLS


async def _killed_once(space: Deployment, log: Path, name: str, verb: Verb, kind: str, at: int) -> int | None:
    """Do it with a worker that is killed at a call, see it done all the same, and undo it.

    Returns how many calls before had changed something; None where there were not so many this time.
    """
    sandbox = await _prepared(space, verb)
    pid = space.daemon_pid("worker")
    async with followed(pid, log, kind, kill_at=at) as step:
        await _do(space, sandbox, verb)
        killed = await step.killed(1.0)
    if killed:
        await _until_back(space, pid)
    await until_equal(space, f"{name}, killed at {kind} {at}: {step.last()}")
    await _check(space, sandbox, verb)
    return sum(step.acts()[kind][:-1]) if killed else None


async def test_killed_at_every_step_of_a_create_from_a_spare(space: Deployment, tmp_path: Path, full: bool) -> None:
    if not full:
        pytest.skip("takes minutes: part of `scripts/test endurance`")
    await _kill_at_every_step(space, tmp_path, "create from a spare", VERBS["create"])


@pytest.mark.parametrize("name", VERBS)
async def test_killed_at_every_step(without_spares: Deployment, tmp_path: Path, name: str) -> None:
    """Spares are no part of these verbs, and the worker would be killed while it makes them instead."""
    await _kill_at_every_step(without_spares, tmp_path, name, VERBS[name])
