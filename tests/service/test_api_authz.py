"""The edge's question: where a request may go, and that a change is believed at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.support.control_plane import Api
from tests.support.rows import insert_sandbox, insert_template

from space.apiserver.edge_question import EdgeQuestion
from space.apiserver.question import Question
from space.control import access, keys, recent
from space.model.errors import BadRequest, NotFound, SpaceError, Unauthorized
from space.model.ids import new_id
from space.model.lifecycle import Event, State
from space.store import projects, sandboxes, wishes
from space.store.notices import Channel

TO_API = {"x-space-to": "api"}


async def asked(api: Api, path: str, key: str | None = None) -> dict[str, str]:
    """Return the headers of the decision for a client's path."""
    headers = [(b"x-api-key", (key or api.key).encode())]
    return await EdgeQuestion(api.access, None).decide(Question.of("GET", path.encode(), b"", headers))


async def refused(api: Api, path: str, key: str | None = None) -> SpaceError:
    """Return the error that a client's path gets."""
    with pytest.raises(SpaceError) as caught:
        await asked(api, path, key)
    return caught.value


async def test_requests_for_a_running_sandbox_go_to_its_node(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    to_node = {"x-space-to": "node", "x-space-sandbox": made.id, "x-access-token": "t0ken"}
    for rest in ("commands", "files", "commands/c1/output", "files/list"):
        assert await asked(api, f"/v1/sandboxes/{made.id}/{rest}") == to_node


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE"])
async def test_over_http_with_any_method_and_a_query(api: Api, method: str) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    path = f"/internal/authz/v1/sandboxes/{made.id}/files?path=%2Fetc%2F..%2Fpasswd"
    answer = await api.http.request(method, path)
    assert (answer.status_code, answer.headers["x-space-to"], answer.content) == (200, "node", b"")
    async with api.anonymous() as http:
        answer = await http.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
    assert "x-space-to" not in answer.headers


@pytest.mark.parametrize(
    ("state", "reason", "status", "code", "says"),
    [
        (State.CREATING, None, 409, "sandbox_starting", "still starting"),
        (State.PAUSED, "disk_full", 409, "sandbox_paused", "disk_full"),
        (State.FAILED, "The VMM was killed.", 409, "sandbox_failed", "The VMM was killed."),
        (State.DELETING, None, 404, "not_found", "deleted"),
        (State.DELETED, None, 404, "not_found", "deleted"),
    ],
)
async def test_a_sandbox_in_another_state_is_refused_with_why(
    api: Api, state: State, reason: str | None, status: int, code: str, says: str
) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=state, reason=reason)
    answer = await api.http.post(f"/internal/authz/v1/sandboxes/{made.id}/commands")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert says in answer.json()["detail"]
    assert ("retry-after" in answer.headers) == (state is State.CREATING)


async def test_a_delete_that_is_asked_for_closes_the_way(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    await wishes.ask_delete(api.plane.db, made.id)
    assert (await refused(api, f"/v1/sandboxes/{made.id}/commands")).status == 404


async def test_who_may_not(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    path = f"/v1/sandboxes/{made.id}/commands"
    _, others = await keys.create(api.plane.db, await projects.ensure(api.plane.db, "other"), "other")
    assert type(await refused(api, path, others)) is NotFound
    assert type(await refused(api, path, "e2b_" + "0" * 40)) is Unauthorized
    assert type(await refused(api, f"/v1/sandboxes/{new_id()}/commands")) is NotFound


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sandboxes/{}/commands/../health",
        "/v1/sandboxes/{}/commands/%2e%2e/health",
        "/v1/sandboxes/{}/files%2f..%2fhealth/../commands/x",
        "/v1/sandboxes/{}/files//health",
        "/v1/sandboxes/{}/files/.hidden",
        "/v1/sandboxes/{}/files/a\\b",
        "/v1/sandboxes/{}/files/%00",
    ],
)
async def test_no_odd_path_reaches_a_sandbox(api: Api, path: str) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    with contextlib.suppress(BadRequest):
        assert await asked(api, path.format(made.id)) == TO_API, "passes only as a request for the api itself"


@pytest.mark.parametrize(
    "path",
    [
        "/", "/v1/sandboxes", "/v1/sandboxes/{}", "/v1/sandboxes/{}/events", "/v1/sandboxes/{}/commandsx",
        "/v1/sandboxes/{}/xfiles", "/x/v1/sandboxes/{}/files", "/v1/templates", "/healthz", "/v1/sandboxes/{}/../x",
    ],
)  # fmt: skip
async def test_every_other_path_is_the_apis_own(api: Api, path: str) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    assert await asked(api, path.format(made.id), key="none") == TO_API


@pytest.mark.parametrize("path", ["/internal", "/internal/authz/v1/keys", "/internal/authz/internal/authz/"])
async def test_clients_cannot_ask_the_edges_questions(refusing_api: Api, path: str) -> None:
    assert (await refusing_api.http.get(f"/internal/authz{path}")).status_code == 404


@pytest.mark.parametrize("slash", ["%2f", "%2F"])
async def test_nor_does_an_escaped_slash_make_a_clients_path_one(api: Api, slash: str) -> None:
    """The edge lets `%2F` through, since ids of templates have it; an answer here would hold the agent's token."""
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    for start in (f"/internal{slash}authz/", f"/internal/authz{slash}"):
        answer = await api.http.get(f"{start}v1/sandboxes/{made.id}/files")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert "x-access-token" not in answer.headers


async def test_a_change_is_believed_at_once_with_notices_and_soon_without(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    path = f"/v1/sandboxes/{made.id}/commands"

    async def fail() -> None:
        async with api.plane.db.transaction() as tx:
            await sandboxes.move(tx, made, Event.FAILED, reason="killed")

    assert await asked(api, path)
    await fail()
    assert await asked(api, path), "from memory: nobody has told"
    async with asyncio.timeout(10):
        while (await api.http.get(f"/internal/authz{path}")).status_code != 409:
            await asyncio.sleep(0.05)


async def test_notices_drop_what_is_remembered(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("space.control.recent.MAX_AGE_S", 3600)
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    path = f"/internal/authz/v1/sandboxes/{made.id}/commands"
    async with asyncio.TaskGroup() as group:
        with api.plane.notices.changes(Channel.KEY, "any") as connected:
            listening = group.create_task(api.plane.notices.run())
            await connected.wait()
        key, text = await keys.create(api.plane.db, api.project, "second")
        async with api.anonymous({"x-api-key": text}) as second, asyncio.timeout(10):
            assert (await second.get(path)).status_code == 200
            async with api.plane.db.transaction() as tx:
                await sandboxes.move(tx, made, Event.PAUSED, reason="disk_full")
            while (await second.get(path)).status_code != 409:
                await asyncio.sleep(0.02)
            await keys.revoke(api.plane.db, api.project, key.id)
            while (await second.get(path)).status_code != 401:
                await asyncio.sleep(0.02)
        listening.cancel()


@contextlib.asynccontextmanager
async def _keeping(api: Api) -> AsyncIterator[None]:
    """Read keys in use again, as the process does, with nobody listening to notices."""
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(api.access.keep_keys())
        yield
        keeping.cancel()


async def test_a_key_in_use_is_read_again_before_a_request_must_wait_for_it(api: Api) -> None:
    async with _keeping(api):
        assert (await api.http.get("/v1/sandboxes")).status_code == 200
        (entry,) = api.access._keys._entries.values()
        first = entry.began
        async with asyncio.timeout(30):
            while entry.began == first:
                await asyncio.sleep(0.01)
        assert list(api.access._keys._entries.values()) == [entry], (
            "it was not dropped meanwhile, for a request to read"
        )
    assert access._KEEP_EVERY_S < recent.MAX_AGE_S / 2, "in time, where the database takes some of it"


async def test_a_key_in_use_that_is_revoked_is_refused_soon_without_notices(api: Api) -> None:
    key, text = await keys.create(api.plane.db, api.project, "second")
    async with _keeping(api), api.anonymous({"x-api-key": text}) as second:
        assert (await second.get("/v1/sandboxes")).status_code == 200
        await keys.revoke(api.plane.db, api.project, key.id)
        async with asyncio.timeout(10):
            while (await second.get("/v1/sandboxes")).status_code != 401:
                await asyncio.sleep(0.05)


async def test_without_the_database_the_answer_is_no(api: Api) -> None:
    api.plane.db._pool.terminate()
    answer = await api.http.get(f"/internal/authz/v1/sandboxes/{new_id()}/commands")
    assert (answer.status_code, answer.json()["code"]) == (453, "unavailable"), "503 for the client"
