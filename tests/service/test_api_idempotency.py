"""Creates that are repeated, and creates and deletes while no worker answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.support.control_plane import Api
from tests.support.rows import insert_sandbox, insert_template

from space.control import reconcile, waiting
from space.controllers import loops
from space.model.lifecycle import State


@pytest.fixture
async def impatient(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """The api with a template, that waits only a moment for a worker."""
    await insert_template(api.plane.db, api.project)
    monkeypatch.setattr(waiting, "WAIT_UNAVAILABLE_S", 0.05)
    return api


@contextlib.asynccontextmanager
async def looping(*apis: Api) -> AsyncIterator[None]:
    """Run the controller's loops of these processes meanwhile."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loops.run(api.plane)) for api in apis]
        yield
        for task in tasks:
            task.cancel()


async def test_a_create_without_a_worker_fails_and_leaves_nothing(impatient: Api) -> None:
    answer = await impatient.http.post("/v1/sandboxes")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"
    assert (await impatient.http.get("/v1/sandboxes")).json()["sandboxes"] == []


async def test_after_a_create_that_came_to_nothing_its_key_is_free(impatient: Api) -> None:
    for body in (b"{}", b'{"vcpus": 2}'):
        answer = await impatient.http.post("/v1/sandboxes", content=body, headers={"idempotency-key": "k"})
        assert answer.json()["code"] == "unavailable"


async def test_a_repeated_create_is_told_that_the_first_is_under_way(impatient: Api) -> None:
    first = await impatient.http.post("/v1/sandboxes?wait=0", headers={"idempotency-key": "k"})
    assert first.status_code == 202
    again = await impatient.http.post("/v1/sandboxes?wait=0", headers={"idempotency-key": "k"})
    assert (again.status_code, again.json()["code"]) == (409, "idempotency_in_flight")
    other = await impatient.http.post("/v1/sandboxes", content=b'{"vcpus": 2}', headers={"idempotency-key": "k"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert len((await impatient.http.get("/v1/sandboxes")).json()["sandboxes"]) == 1


async def test_creates_with_one_key_at_the_same_moment_make_one_sandbox(impatient: Api) -> None:
    statuses: list[int] = []

    async def one() -> None:
        answer = await impatient.http.post("/v1/sandboxes?wait=0", headers={"idempotency-key": "k"})
        statuses.append(answer.status_code)

    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(one())
    assert sorted(statuses) == [202, 409, 409, 409, 409, 409]
    assert len((await impatient.http.get("/v1/sandboxes")).json()["sandboxes"]) == 1


async def test_another_project_may_use_the_same_key(impatient: Api) -> None:
    spelled = b'{"memory_mib": 512, "labels": {"b": "1", "a": "2"}}'
    first = await impatient.http.post("/v1/sandboxes?wait=0", content=spelled, headers={"idempotency-key": "k"})
    await impatient.http.delete(f"/v1/sandboxes/{first.json()['sandbox_id']}")
    same = b'{"labels": {"a": "2", "b": "1"}, "vcpus": 1}'
    again = await impatient.http.post("/v1/sandboxes", content=same, headers={"idempotency-key": "k"})
    assert (again.status_code, again.json()["code"]) == (409, "conflict"), "the first one's outcome: it was deleted"


async def test_a_delete_whose_worker_is_away_is_recorded(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.RUNNING, worker="away")
    for _ in range(2):
        answer = await impatient.http.delete(f"/v1/sandboxes/{made.id}")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "recorded" in answer.json()["detail"]
    assert (await impatient.http.get(f"/v1/sandboxes/{made.id}")).json()["state"] == "deleting"
    row = await impatient.plane.db.fetchrow("SELECT count(*) AS n FROM operations WHERE sandbox_id = $1", made.id)
    assert row is not None
    assert row["n"] == 1, "a repeated delete joins the first"


async def test_what_a_crash_left_is_healed_once_however_many_look(
    impatient: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "CREATE_DEADLINE_S", 0)
    db, project = impatient.plane.db, impatient.project
    creating = [await insert_sandbox(db, project) for _ in range(5)]
    deleting = [await insert_sandbox(db, project, state=State.DELETING) for _ in range(5)]
    plane = impatient.plane
    other = type(plane)(db, plane.notices, plane.workers, plane.vault)
    twin = Api(impatient.http, other, impatient.access, project, impatient.key)
    async with looping(impatient, twin), asyncio.timeout(20):
        while (await impatient.http.get("/v1/sandboxes")).json()["sandboxes"]:
            await asyncio.sleep(0.05)
    for made in creating + deleting:
        told = (await impatient.http.get(f"/v1/sandboxes/{made.id}/events")).json()["events"]
        assert [event["type"] for event in told] == ["created", "delete_asked", "deleted"]


async def test_an_accepted_create_fails_when_no_worker_came(impatient: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "CREATE_DEADLINE_S", 0)
    accepted = await impatient.http.post("/v1/sandboxes?wait=0")
    place = accepted.headers["location"]
    async with looping(impatient), asyncio.timeout(20):
        while (operation := (await impatient.http.get(place)).json())["status"] == "running":
            await asyncio.sleep(0.05)
    assert (operation["status"], operation["error"]["code"]) == ("failed", "unavailable")
