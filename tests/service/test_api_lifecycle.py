"""The verbs between create and delete over real rows: what is answered, and what is written, without a worker."""

import asyncio

import pytest
from tests.support.control_plane import Api
from tests.support.rows import insert_sandbox, insert_template

from space.control import waiting
from space.control.happening import happen
from space.model.convergence import due
from space.model.errors import NoCapacity
from space.model.lifecycle import Event, State
from space.model.sandbox import Desired, Sandbox
from space.store import sandboxes, wishes

DAY_S = 86400


@pytest.fixture
async def impatient(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """The api with a template, that waits only a moment for a worker."""
    await insert_template(api.plane.db, api.project)
    monkeypatch.setattr(waiting, "WAIT_UNAVAILABLE_S", 0.05)
    return api


async def row_of(api: Api, sandbox: Sandbox) -> Sandbox:
    found = await sandboxes.get(api.plane.db, sandbox.id)
    assert found is not None
    return found


async def moved(api: Api, sandbox: Sandbox, *events: Event, error: NoCapacity | None = None) -> Sandbox:
    """Let events happen to a row, as reconciling does when a worker has answered."""
    row = await row_of(api, sandbox)
    for event in events:
        async with api.plane.db.transaction() as tx:
            row = await happen(api.plane, tx, row, event, reason=None if error is None else str(error), error=error)
    return row


@pytest.mark.parametrize(
    ("state", "verb", "shown"),
    [
        (State.PAUSED, "pause", "paused"),
        (State.SUSPENDED, "suspend", "suspended"),
        (State.RUNNING, "resume", "running"),
        (State.RUNNING, "restore", "running"),
    ],
)
async def test_what_is_so_already_is_fine(impatient: Api, state: State, verb: str, shown: str) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=state, worker="away")
    if state is State.PAUSED:
        await impatient.plane.db.execute(
            "UPDATE sandboxes SET desired = $2, observed_generation = generation WHERE id = $1", made.id, str(state)
        )
    before = await row_of(impatient, made)
    for query in ("", "?wait=0"):
        answer = await impatient.http.post(f"/v1/sandboxes/{made.id}/{verb}{query}")
        assert (answer.status_code, answer.json()["state"]) == (200, shown)
    assert await row_of(impatient, made) == before


@pytest.mark.parametrize(
    ("state", "verb", "status", "code"),
    [
        (State.FAILED, "resume", 409, "sandbox_failed"),
        (State.FAILED, "snapshots", 409, "sandbox_failed"),
        (State.SUSPENDED, "pause", 409, "sandbox_suspended"),
        (State.SUSPENDING, "fork", 409, "sandbox_busy"),
        (State.RESTORING, "snapshots", 409, "sandbox_busy"),
        (State.DELETING, "fork", 404, "not_found"),
        (State.DELETED, "suspend", 404, "not_found"),
        (State.RUNNING, "pause", 503, "unavailable"),
    ],
)
async def test_what_cannot_be_is_refused_with_why(
    impatient: Api, state: State, verb: str, status: int, code: str
) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=state, worker="away")
    if state is State.DELETING:
        await wishes.ask_delete(impatient.plane.db, made.id)
    answer = await impatient.http.post(f"/v1/sandboxes/{made.id}/{verb}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert ("retry-after" in answer.headers) == (code in ("sandbox_busy", "unavailable"))


async def test_what_a_query_says_is_read(impatient: Api) -> None:
    """A request without one goes a shorter way."""
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.RUNNING)
    for verb in ("pause", "resume", "suspend", "restore"):
        refused = await impatient.http.post(f"/v1/sandboxes/{made.id}/{verb}?wait=later")
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_argument")
        assert "wait: must be '0', '1', 'true' or 'false'" in refused.json()["detail"]
    assert (await impatient.http.post(f"/v1/sandboxes/{made.id}/pause?wait=0")).status_code == 202


async def test_a_wish_without_a_worker_is_recorded_and_joined(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.SUSPENDED, worker="away")
    accepted = [(await impatient.http.post(f"/v1/sandboxes/{made.id}/resume?wait=0")).json() for _ in range(3)]
    assert len({operation["id"] for operation in accepted}) == 1, "two resumes at once are one"
    row = await row_of(impatient, made)
    assert (row.spec.desired, row.generation, row.settled) == (Desired.RUNNING, 3, False)


async def test_a_resume_during_a_suspension_is_done_after_it(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.RUNNING, worker="away")
    suspend = (await impatient.http.post(f"/v1/sandboxes/{made.id}/suspend?wait=0")).json()
    await moved(impatient, made, Event.SUSPEND_BEGUN)
    resume = (await impatient.http.post(f"/v1/sandboxes/{made.id}/resume?wait=0")).json()
    suspending = await row_of(impatient, made)
    assert due(suspending.spec.desired, suspending.state) == "suspend", "what has begun is ended first"
    suspended = await moved(impatient, made, Event.SUSPENDED)
    assert (due(suspended.spec.desired, suspended.state), suspended.settled) == ("restore", False)
    running = await moved(impatient, made, Event.RESTORE_BEGUN, Event.RESTORED)
    assert running.settled
    for operation in (suspend, resume):
        assert (await impatient.http.get(f"/v1/operations/{operation['id']}")).json()["status"] == "succeeded"


async def test_without_room_it_stays_suspended_and_the_caller_is_told(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.SUSPENDED, worker="away")
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(impatient.http.post(f"/v1/sandboxes/{made.id}/resume?wait=0"))
    operation = asking.result().json()
    row = await moved(impatient, made, Event.RESTORE_BEGUN, Event.RESTORE_FAILED, error=NoCapacity("No room."))
    assert (row.state, row.spec.desired, row.settled) == (State.SUSPENDED, Desired.SUSPENDED, True)
    found = (await impatient.http.get(f"/v1/operations/{operation['id']}")).json()
    assert (found["status"], found["error"]) == ("failed", {"code": "no_capacity", "detail": "No room."})
    told = (await impatient.http.get(f"/v1/sandboxes/{made.id}/events")).json()["events"]
    assert (told[-1]["type"], told[-1]["reason"]) == ("restore_failed", "No room.")


async def test_a_later_call_overtakes_and_a_delete_wins(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, worker="away")
    urls = [f"/v1/sandboxes/{made.id}/{verb}?wait=0" for verb in ("suspend", "pause", "resume")]
    suspend, pause, resume = [(await impatient.http.post(url)).json() for url in urls]
    row = await row_of(impatient, made)
    assert row.spec.desired is Desired.RUNNING
    await moved(impatient, made, Event.STARTED)
    found = [(await impatient.http.get(f"/v1/operations/{o['id']}")).json() for o in (suspend, pause, resume)]
    assert [(o["status"], o["error"] and o["error"]["code"]) for o in found] == [
        ("failed", "overtaken"), ("failed", "overtaken"), ("succeeded", None),
    ]  # fmt: skip
    late = (await impatient.http.post(urls[0])).json()
    await impatient.http.delete(f"/v1/sandboxes/{made.id}?wait=0")
    await moved(impatient, made, Event.DELETE_ASKED)
    assert (await impatient.http.get(f"/v1/operations/{late['id']}")).json()["status"] == "failed"


async def test_deadlines_are_shown_and_changed(impatient: Api) -> None:
    body = {"timeout_s": DAY_S, "on_timeout": "suspend", "idle_timeout_s": None, "auto_resume": False}
    made = (await impatient.http.post("/v1/sandboxes?wait=0", json=body)).json()["sandbox_id"]
    shown = (await impatient.http.get(f"/v1/sandboxes/{made}")).json()
    assert {name: shown[name] for name in body} == body
    assert shown["expires_at"] is not None
    changed = (await impatient.http.patch(f"/v1/sandboxes/{made}", json={"labels": {"a": "b"}})).json()
    assert (changed["labels"], changed["expires_at"]) == ({"a": "b"}, shown["expires_at"]), "only what is given"
    changed = (await impatient.http.patch(f"/v1/sandboxes/{made}", json={"timeout_s": 2 * DAY_S})).json()
    assert changed["expires_at"] > shown["expires_at"]
    changed = (await impatient.http.patch(f"/v1/sandboxes/{made}", json={"timeout_s": None})).json()
    assert (changed["timeout_s"], changed["expires_at"], changed["on_timeout"]) == (None, None, "suspend")
    for bad in ({"idle_timeout_s": 0}, {"timeout_s": -1}, {"auto_resume": "yes"}, {"vcpus": 2}):
        answer = await impatient.http.patch(f"/v1/sandboxes/{made}", json=bad)
        assert (answer.status_code, answer.json()["detail"].split(":")[0]) == (422, next(iter(bad)))
    default = (await impatient.http.post("/v1/sandboxes?wait=0")).json()["sandbox_id"]
    assert (await impatient.http.get(f"/v1/sandboxes/{default}")).json()["idle_timeout_s"] == 6 * 3600


async def test_a_change_settles_by_itself(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.RUNNING, worker="away")
    await impatient.http.patch(f"/v1/sandboxes/{made.id}", json={"labels": {}})
    row = await row_of(impatient, made)
    assert (row.generation, row.settled) == (2, True)


async def test_a_request_counts_as_use_and_reading_does_not(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.RUNNING, worker="away")
    await impatient.http.get(f"/v1/sandboxes/{made.id}")
    await impatient.http.get(f"/v1/sandboxes/{made.id}/events")
    await impatient.plane.activity.flush(impatient.plane.db)
    assert (await row_of(impatient, made)).last_active_at == made.last_active_at
    await impatient.http.get(f"/internal/authz/v1/sandboxes/{made.id}/files")
    await impatient.plane.activity.flush(impatient.plane.db)
    used = await row_of(impatient, made)
    assert used.last_active_at > made.last_active_at
    assert used.spec == made.spec, "and changes no deadline"


async def test_a_request_wakes_unless_told_not_to(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.SUSPENDED, worker="away")
    path = f"/internal/authz/v1/sandboxes/{made.id}/commands"
    answer = await impatient.http.post(path)
    assert (answer.status_code, answer.json()["code"]) == (453, "unavailable"), "its worker is away; 503 for the client"
    row = await row_of(impatient, made)
    assert (row.spec.desired, row.spec.desired_reason) == (Desired.RUNNING, "woken by a request")
    other = await insert_sandbox(impatient.plane.db, impatient.project, state=State.SUSPENDED, worker="away")
    await impatient.http.patch(f"/v1/sandboxes/{other.id}", json={"auto_resume": False})
    answer = await impatient.http.post(f"/internal/authz/v1/sandboxes/{other.id}/commands")
    assert (answer.status_code, answer.json()["code"]) == (409, "sandbox_suspended")
    assert f"space sandbox resume {other.id}" in answer.json()["detail"]


async def test_another_project_neither_wakes_nor_touches(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.SUSPENDED, worker="away")
    before = await row_of(impatient, made)
    async with impatient.anonymous({"x-api-key": "e2b_" + "0" * 40}) as http:
        await http.post(f"/internal/authz/v1/sandboxes/{made.id}/commands")
    await impatient.plane.activity.flush(impatient.plane.db)
    assert await row_of(impatient, made) == before


async def test_a_fork_without_its_worker_leaves_nothing(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.RUNNING, worker="away")
    answer = await impatient.http.post(f"/v1/sandboxes/{made.id}/fork", json={"count": 3})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    states = await impatient.plane.db.fetch("SELECT desired FROM sandboxes WHERE parent = $1", made.id)
    assert [row["desired"] for row in states] == ["deleted"] * 3


async def test_forks_have_an_identity_of_their_own(impatient: Api) -> None:
    made = await insert_sandbox(
        impatient.plane.db, impatient.project, state=State.RUNNING, worker="away", env={"A": "1"}, labels={"l": "x"}
    )
    body = {"count": 2, "env": {"B": "2"}, "timeout_s": 60}
    accepted = await impatient.http.post(f"/v1/sandboxes/{made.id}/fork?wait=0", json=body)
    assert accepted.status_code == 202
    rows = [
        await sandboxes.get(impatient.plane.db, result["operation"]["sandbox_id"])
        for result in accepted.json()["results"]
    ]
    children = [row for row in rows if row is not None]
    assert len({made.spec.agent_token, *(child.spec.agent_token for child in children)}) == 3
    for child in children:
        assert (child.spec.parent, child.spec.env, child.spec.labels) == (made.id, {"A": "1", "B": "2"}, {"l": "x"})
        assert child.spec.deadlines.timeout_s == 60
    for count in (0, 21):
        answer = await impatient.http.post(f"/v1/sandboxes/{made.id}/fork", json={"count": count})
        assert answer.status_code == 422
