"""Policies, ceilings and secrets of sandboxes over real rows, and what a worker is told of them."""

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import control_plane, worker_socket
from tests.support.control_plane import Api
from tests.support.rows import insert_sandbox, insert_template
from tests.support.worker_socket import Told

from space.control import egress, secrets
from space.controllers import watch
from space.controllers.egress import push_lagging
from space.model.ids import SandboxId, WorkerId
from space.model.lifecycle import State
from space.model.policy_document import parse
from space.store import policies
from space.store.db import Database

Json = dict[str, Any]
ALLOWED: Json = {"allow": [{"host": "allowed.test", "methods": ["GET"], "paths": ["/public/**"]}]}
BOUND: Json = {"allow": [{"host": "bound.test", "headers": {"authorization": "Bearer ${secrets.TOKEN}"}}]}
CANARY = "canary-4f1d7c"


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    """A worker's socket, and what it is told."""
    async with worker_socket.listening(tmp_path / "worker.sock") as found:
        yield found


@pytest.fixture
async def attached(db: Database, told: Told, tmp_path: Path) -> AsyncIterator[Api]:
    """The api with that worker, already met."""
    async with control_plane.api_over(db, tmp_path / "worker.sock") as made:
        made.plane.workers.links[0].id = WorkerId("w1")
        await insert_template(db, made.project)
        yield made


async def running(api: Api, policy: Json | None = None) -> SandboxId:
    """Return a running sandbox on the worker, with a policy."""
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING, worker="w1")
    if policy is not None:
        assert (await api.http.put(f"/v1/sandboxes/{made.id}/policy", json=policy)).status_code == 200
    return made.id


async def test_a_sandbox_begins_with_nothing_allowed(attached: Api) -> None:
    sandbox = await running(attached)
    shown = (await attached.http.get(f"/v1/sandboxes/{sandbox}/policy")).json()
    assert shown == {"policy": {}, "ceiling": None, "generation": 1, "applied": True, "secrets": []}
    orders = await egress.orders(attached.plane, sandbox)
    assert (orders.egress.policy, orders.egress.generation, orders.secrets.values) == ({}, 1, {})


async def test_a_created_sandbox_has_its_policy_from_the_start(attached: Api) -> None:
    answer = await attached.http.post("/v1/sandboxes?wait=0", json={"policy": ALLOWED})
    sandbox = SandboxId(answer.json()["sandbox_id"])
    orders = await egress.orders(attached.plane, sandbox)
    assert orders.egress.policy == ALLOWED
    row = await policies.get(attached.plane.db, sandbox)
    assert row is not None
    assert row.applied == row.generations, "its start order has it"


async def test_a_wrong_policy_makes_no_sandbox_and_changes_none(attached: Api, told: Told) -> None:
    wrong = {"allow": [{"host": "a.test"}, {"host": "203.0.113.9"}]}
    answer = await attached.http.post("/v1/sandboxes", json={"policy": wrong})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_policy")
    assert answer.json()["detail"].startswith("allow[1].host: ")
    assert (await attached.http.get("/v1/sandboxes")).json()["sandboxes"] == []
    sandbox = await running(attached, ALLOWED)
    calls = len(told.calls)
    large = {"allow": [{"host": "a.test", "headers": {f"h{n}": "${secrets.A}" + "x" * 2000 for n in range(200)}}]}
    bodies: list[object] = [wrong, {"ceiling": {}}, {}, [], large]
    for body in bodies:
        assert (await attached.http.put(f"/v1/sandboxes/{sandbox}/policy", json=body)).status_code == 422, body
    assert (await attached.http.get(f"/v1/sandboxes/{sandbox}/policy")).json()["policy"] == ALLOWED
    assert len(told.calls) == calls


async def test_a_change_answers_when_the_worker_goes_by_it(attached: Api, told: Told) -> None:
    sandbox = await running(attached)
    answer = await attached.http.put(f"/v1/sandboxes/{sandbox}/policy", json=ALLOWED)
    assert (answer.json()["generation"], answer.json()["applied"]) == (2, True)
    assert told.to(f"/v1/sandboxes/{sandbox}/egress") == [{"policy": ALLOWED, "generation": 2}]


async def test_a_change_that_does_not_get_through_is_pushed_later(attached: Api, told: Told) -> None:
    sandbox = await running(attached)
    told.refuse = True
    answer = await attached.http.put(f"/v1/sandboxes/{sandbox}/policy", json=ALLOWED)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    shown = (await attached.http.get(f"/v1/sandboxes/{sandbox}/policy")).json()
    assert (shown["policy"], shown["applied"]) == (ALLOWED, False), "recorded"
    told.refuse = False
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        pushing = group.create_task(push_lagging(attached.plane))
        while not (await attached.http.get(f"/v1/sandboxes/{sandbox}/policy")).json()["applied"]:
            await asyncio.sleep(0.05)
        pushing.cancel()
    assert told.to(f"/v1/sandboxes/{sandbox}/egress") == [{"policy": ALLOWED, "generation": 2}]


async def test_a_worker_that_forgot_is_told_again(attached: Api, told: Told) -> None:
    await attached.http.post("/v1/secrets", json={"name": "TOKEN", "value": CANARY})
    sandbox = await running(attached, BOUND)
    told.calls.clear()
    fact = {"type": "sandbox", "id": sandbox, "state": "running", "epoch": 1}
    told.facts = [fact | {"egress_generation": 2, "secrets_generation": 0}]
    await watch.compare(attached.plane, attached.plane.workers.links[0])
    assert [target for _, target, _ in told.calls] == [f"/v1/sandboxes/{sandbox}/secrets"], "it kept the policy"
    told.calls.clear()
    told.facts = [fact | {"egress_generation": 2, "secrets_generation": 2}]
    await watch.compare(attached.plane, attached.plane.workers.links[0])
    assert told.calls == []


async def test_a_suspended_one_gets_the_newest_when_it_is_restored(attached: Api, told: Told) -> None:
    made = await insert_sandbox(attached.plane.db, attached.project, state=State.SUSPENDED, worker="w1")
    answer = await attached.http.put(f"/v1/sandboxes/{made.id}/policy", json=ALLOWED)
    assert (answer.status_code, answer.json()["applied"]) == (200, False)
    assert told.calls == []
    assert (await egress.orders(attached.plane, made.id)).egress.policy == ALLOWED


async def test_the_ceiling_is_part_of_what_every_worker_is_told(attached: Api, told: Told) -> None:
    one, other = await running(attached, ALLOWED), await running(attached)
    told.calls.clear()
    ceiling = {"allow": [{"host": "*.test", "methods": ["GET"]}]}
    assert (await attached.http.put("/v1/project/policy", json=ceiling)).json() == {"ceiling": ceiling}
    assert told.to(f"/v1/sandboxes/{one}/egress") == [{"policy": ALLOWED | {"ceiling": ceiling}, "generation": 3}]
    assert told.to(f"/v1/sandboxes/{other}/egress") == [{"policy": {"ceiling": ceiling}, "generation": 2}]
    parse(told.to(f"/v1/sandboxes/{one}/egress")[0]["policy"])
    assert (await attached.http.get(f"/v1/sandboxes/{one}/policy")).json()["ceiling"] == ceiling
    assert (await attached.http.put("/v1/project/policy", json={"observe": True})).status_code == 422
    assert (await attached.http.delete("/v1/project/policy")).status_code == 204
    assert told.to(f"/v1/sandboxes/{one}/egress")[-1] == {"policy": ALLOWED, "generation": 4}
    assert (await attached.http.get("/v1/project/policy")).json() == {"ceiling": None}


async def test_a_rotated_secret_reaches_those_that_bind_it(attached: Api, told: Told) -> None:
    await attached.http.post("/v1/secrets", json={"name": "TOKEN", "value": "first"})
    ident = (await secrets.find(attached.plane, attached.project, "TOKEN")).id

    def value(version: int, text: str) -> Json:
        return {"id": ident, "version": version, "given_version": version, "value": text}

    bound, _ = await running(attached, BOUND), await running(attached, ALLOWED)
    target = f"/v1/sandboxes/{bound}/secrets"
    assert told.to(target) == [{"generation": 2, "values": {"TOKEN": value(1, "first")}}]
    told.calls.clear()
    rotated = await attached.http.post("/v1/secrets", json={"name": "TOKEN", "value": CANARY})
    assert (rotated.status_code, rotated.json()["version"]) == (201, 2)
    assert told.calls == [("PUT", target, {"generation": 3, "values": {"TOKEN": value(2, CANARY)}})]
    assert (await attached.http.delete("/v1/secrets/TOKEN")).status_code == 204
    assert told.to(target)[-1] == {"generation": 4, "values": {}}, "requests that need it are refused"
    assert (await attached.http.delete("/v1/secrets/TOKEN")).status_code == 404


async def test_a_secret_that_is_added_late_counts(attached: Api, told: Told) -> None:
    sandbox = await running(attached, BOUND)
    assert told.to(f"/v1/sandboxes/{sandbox}/secrets") == [{"generation": 2, "values": {}}]
    await attached.http.post("/v1/secrets", json={"name": "TOKEN", "value": CANARY})
    (value,) = told.to(f"/v1/sandboxes/{sandbox}/secrets")[-1]["values"].values()
    assert (value["version"], value["value"]) == (1, CANARY)


async def test_another_projects_policies_and_secrets_do_not_exist(attached: Api, told: Told) -> None:
    from tests.service.test_api_resources import other_projects_key

    await attached.http.post("/v1/secrets", json={"name": "TOKEN", "value": CANARY})
    sandbox = await running(attached, BOUND)
    key = await other_projects_key(attached)
    async with attached.anonymous({"x-api-key": key}) as http:
        assert (await http.get("/v1/secrets")).json() == {"secrets": []}
        assert (await http.delete("/v1/secrets/TOKEN")).status_code == 404
        for path in ("policy", "egress", "asks"):
            assert (await http.get(f"/v1/sandboxes/{sandbox}/{path}")).status_code == 404
        assert (await http.put(f"/v1/sandboxes/{sandbox}/policy", json=ALLOWED)).status_code == 404
        await http.put("/v1/project/policy", json={"default": "deny"})
    assert (await attached.http.get(f"/v1/sandboxes/{sandbox}/policy")).json()["ceiling"] is None
    assert len(told.to(f"/v1/sandboxes/{sandbox}/egress")) == 1


async def test_an_authority_is_issued_where_there_is_none_or_half_of_it_is_over(attached: Api, told: Told) -> None:
    link = attached.plane.workers.links[0]
    now = datetime.datetime.now(datetime.UTC)
    for hours, issued in ((None, 1), (23, 1), (11, 2)):
        told.authority = (
            None if hours is None else {"serial": "1", "not_after": (now + datetime.timedelta(hours=hours)).isoformat()}
        )
        await watch._authorise(attached.plane, link, await link.client.info())
        assert len(told.to("/v1/authority")) == issued, hours
    one, other = told.to("/v1/authority")
    assert one["root"] == other["root"], "one root for the deployment"
    assert one["key"] != other["key"]


async def test_a_fork_has_the_policy_without_the_credentials(attached: Api, told: Told) -> None:
    await attached.http.post("/v1/secrets", json={"name": "TOKEN", "value": CANARY})
    parent = await running(attached, BOUND)
    forked = await attached.http.post(f"/v1/sandboxes/{parent}/fork?wait=0", json={"count": 1})
    child = SandboxId(forked.json()["results"][0]["operation"]["sandbox_id"])
    orders = await egress.orders(attached.plane, child)
    assert orders.egress.policy == {"allow": [{"host": "bound.test"}]}
    assert orders.secrets.values == {}
    assert set((await egress.orders(attached.plane, parent)).secrets.values) == {"TOKEN"}, "positive control"
