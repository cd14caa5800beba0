"""E2B's sandbox calls over real rows: what is answered, and what is written. The worker is away."""

import datetime
from urllib.parse import quote, urlencode

import pytest
from tests.service.test_e2b_surface import message
from tests.support.control_plane import Api
from tests.support.rows import insert_sandbox, insert_template

from space.control import waiting
from space.model.ids import new_id
from space.model.lifecycle import Event, State
from space.model.sandbox import Desired, OnTimeout, Sandbox
from space.store import sandboxes

E2B = {"templateID": "base"}


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


async def newest(api: Api) -> Sandbox:
    row = await api.plane.db.fetchrow("SELECT id FROM sandboxes ORDER BY created_at DESC, id DESC LIMIT 1")
    assert row is not None
    found = await sandboxes.get(api.plane.db, row["id"])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("path", "given", "timeout_s"),
    [
        ("/sandboxes", {}, 15),
        ("/v2/sandboxes", {}, 300),
        ("/v2/sandboxes", {"timeout": 42, "secure": True, "aFieldOfTomorrow": [1]}, 42),
        ("/v2/sandboxes", {"timeout": None, "metadata": None, "network": None}, 300),
    ],
)
async def test_a_create_writes_what_e2b_means_by_it(
    impatient: Api, path: str, given: dict[str, object], timeout_s: int
) -> None:
    answer = await impatient.http.post(path, json=E2B | given)
    assert "not answer" in message(answer, 503) or answer.headers["should-retry"] == "true"
    assert answer.headers["retry-after"] == "1"
    spec = (await newest(impatient)).spec
    deadlines = spec.deadlines
    assert (deadlines.timeout_s, deadlines.idle_timeout_s, deadlines.auto_resume) == (timeout_s, None, False)
    assert (deadlines.on_timeout, deadlines.timeout_restarts) == (OnTimeout.DELETE, True)
    assert (spec.template_name, spec.public_ports, spec.mask_host, dict(spec.labels)) == ("base", True, None, {})


async def test_everything_a_client_says_is_kept(impatient: Api) -> None:
    odd = {"a:b": "", "": "empty", "long " * 100: "ü" * 5000}
    asked = {
        "templateID": "team/base:default",
        "timeout": 0,
        "autoPause": True,
        "autoPauseMemory": False,
        "metadata": odd,
        "envVars": {"A": "b"},
        "network": {"allowPublicTraffic": False, "maskRequestHost": "shop.example:${PORT}"},
        "allow_internet_access": False,
    }
    await impatient.http.post("/v2/sandboxes", json=asked)
    row = await newest(impatient)
    spec, deadlines = row.spec, row.spec.deadlines
    assert (spec.template_name, dict(spec.labels)) == ("base", odd)
    assert (spec.public_ports, spec.mask_host) == (False, "shop.example:${PORT}")
    assert (deadlines.on_timeout, deadlines.timeout_memory, deadlines.timeout_s) == (OnTimeout.SUSPEND, False, 0)
    assert spec.e2b == {"allowInternetAccess": False, "network": asked["network"]}
    policy = await impatient.http.get(f"/v1/sandboxes/{row.id}/policy")
    assert policy.status_code == 404 or policy.json()["policy"] == {"default": "deny"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"templateID": "nothing"}, (404, "template 'nothing' not found")),
        ({"templateID": f"{new_id()}:default"}, (404, "not found")),
        ({"templateID": 7}, (400, "templateID")),
        ({"timeout": -1}, (400, "timeout")),
        ({"timeout": "soon"}, (400, "timeout")),
        ({"metadata": {"a": 1}}, (400, "metadata.a")),
        ({"metadata": {"a": "x" * 70_000}}, (400, "65536 bytes")),
        ({"metadata": {"a": "\0"}}, (400, "NUL")),
        ({"envVars": {"A=B": ""}}, (400, "env")),
        ({"autoPauseMemory": False}, (400, "autoPause")),
        ({"autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}}, (400, "autoResume")),
        ({"iam": {"tokens": {"t": {"audience": "a", "tokenType": "b"}}}}, (400, "iam")),
        ({"volumeMounts": [{"name": "v", "path": "/v"}]}, (404, "volume")),
        ({"volumeMounts": [{"name": "v", "path": "v"}]}, (400, "absolute")),
        ({"network": {"maskRequestHost": "a b"}}, (400, "mask request host")),
    ],
)
async def test_what_cannot_be_is_refused_with_why(
    impatient: Api, given: dict[str, object], says: tuple[int, str]
) -> None:
    status, words = says
    assert words in message(await impatient.http.post("/v2/sandboxes", json=E2B | given), status)
    assert (await impatient.http.get("/v1/sandboxes")).json()["sandboxes"] == []


async def test_an_idempotency_key_stands_for_its_request(impatient: Api) -> None:
    key = {"idempotency-key": "k-1"}
    body = E2B | {"metadata": {"a": "1", "b": "2"}}
    first = await impatient.http.post("/v1/sandboxes?wait=0", headers=key)
    assert first.status_code == 202
    assert "different request" in message(await impatient.http.post("/v2/sandboxes", json=body, headers=key), 422)
    assert "printable" in message(
        await impatient.http.post("/v2/sandboxes", json=body, headers={"idempotency-key": ""}), 400
    )


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (State.RUNNING, "running"), (State.RESTORING, "running"), (State.PAUSED, "paused"),
        (State.SUSPENDING, "paused"), (State.SUSPENDED, "paused"), (State.CREATING, None), (State.FAILED, None),
        (State.DELETING, None), (State.DELETED, None),
    ],
)  # fmt: skip
async def test_states_are_shown_as_e2b_has_them(impatient: Api, state: State, shown: str | None) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=state, labels={"a": "b"})
    answer = await impatient.http.get(f"/sandboxes/{made.id}")
    listed = (await impatient.http.get("/v2/sandboxes")).json()
    old = (await impatient.http.get("/sandboxes")).json()
    if shown is None:
        message(answer, 404)
        assert (listed, old) == ([], [])
        return
    found = answer.json()
    assert (found["state"], found["sandboxID"], found["metadata"]) == (shown, made.id, {"a": "b"})
    assert (found["envdAccessToken"], found["lifecycle"]) == ("t0ken", {"autoResume": True, "onTimeout": "kill"})
    assert found.get("pauseMode") == ("full" if shown == "paused" else None)
    assert [one["sandboxID"] for one in listed] == [made.id]
    assert [one["sandboxID"] for one in old] == ([made.id] if shown == "running" else [])
    for name in ("startedAt", "endAt"):
        assert datetime.datetime.fromisoformat(found[name]).tzinfo is not None
    for required in ("templateID", "clientID", "envdVersion", "cpuCount", "memoryMB", "diskSizeMB"):
        assert found[required] is not None


async def test_lists_by_pages_and_filters(impatient: Api) -> None:
    db, project = impatient.plane.db, impatient.project
    made = [
        (await insert_sandbox(db, project, state=State.RUNNING, labels={"n": str(n), "a b": "c&d=e"})) for n in range(3)
    ]
    asleep = await insert_sandbox(db, project, state=State.SUSPENDED)

    async def listed(**query: object) -> list[str]:
        answer = await impatient.http.get("/v2/sandboxes", params={name: str(value) for name, value in query.items()})
        assert answer.status_code == 200, answer.text
        return [one["sandboxID"] for one in answer.json()]

    newest_first = [asleep.id, *(one.id for one in made[::-1])]
    assert await listed() == await listed(state="running,paused") == newest_first
    assert await listed(order="asc") == newest_first[::-1]
    assert await listed(state="paused") == [asleep.id]
    assert await listed(metadata=urlencode({quote("a b"): quote("c&d=e")})) == await listed(state="running")
    assert await listed(metadata="n=1") == [made[1].id]
    assert await listed(metadata="n=1&n2=") == []
    assert await listed(startedAfter=made[1].created_at.isoformat()) == newest_first[:3]
    assert await listed(template="base") == newest_first
    assert await listed(template="nothing") == []

    seen, token = [], ""
    while True:
        answer = await impatient.http.get(
            "/v2/sandboxes", params={"limit": "3", "nextToken": token} if token else {"limit": "3"}
        )
        seen += [one["sandboxID"] for one in answer.json()]
        assert answer.headers["x-total-running"] == "3"
        token = answer.headers.get("x-next-token", "")
        if not token:
            break
    assert seen == newest_first
    no_page = ("limit=0", "limit=101", "limit=x", "nextToken=a", f"nextToken={new_id()}")
    for query in (*no_page, "order=up", "state=dead", "metadata=a", "startedAfter=now"):
        message(await impatient.http.get(f"/v2/sandboxes?{query}"), 400)


async def test_a_timeout_is_set_and_extended(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.RUNNING)
    now = impatient.plane.clock.now()

    async def left_s() -> float:
        row = await row_of(impatient, made)
        assert row.expires_at is not None
        return (row.expires_at - now).total_seconds()

    async def post(path: str, body: dict[str, object]) -> int:
        return (await impatient.http.post(f"{path}/{made.id}/{body.pop('call')}", json=body)).status_code

    assert await post("/sandboxes", {"call": "timeout", "timeout": 600}) == 204
    assert 599 < await left_s() < 620
    assert await post("/sandboxes", {"call": "refreshes", "duration": 60}) == 204
    assert await post("/v2/sandboxes", {"call": "connect", "timeout": 10}) == 200
    assert await post("/v2/sandboxes", {"call": "connect"}) == 200
    assert 599 < await left_s() < 620, "none of these shortens it"
    assert await post("/sandboxes", {"call": "connect", "timeout": 900}) == 200
    assert 899 < await left_s() < 920
    assert await post("/sandboxes", {"call": "timeout", "timeout": 30}) == 204
    assert 29 < await left_s() < 50
    assert await post("/sandboxes", {"call": "refreshes"}) == 204
    assert await post("/sandboxes", {"call": "timeout", "timeout": 0}) == 204
    assert await left_s() < 20
    assert await post("/sandboxes", {"call": "connect"}) == 400, "the old call has no default"
    assert await post("/sandboxes", {"call": "resume", "timeout": 10}) == 409
    assert (await row_of(impatient, made)).spec.deadlines.timeout_s is None, "how long it has each time stays"


async def test_a_paused_one_has_no_time_to_set_and_cannot_be_paused(impatient: Api) -> None:
    db = impatient.plane.db
    made = await insert_sandbox(db, impatient.project, state=State.SUSPENDED, worker="w")
    await db.execute(
        "UPDATE sandboxes SET desired = 'suspended', observed_generation = generation WHERE id = $1", made.id
    )
    for call, body in (("timeout", {"timeout": 5}), ("refreshes", {})):
        message(await impatient.http.post(f"/sandboxes/{made.id}/{call}", json=body), 404)
    assert "already paused" in message(await impatient.http.post(f"/sandboxes/{made.id}/pause"), 409)
    answer = await impatient.http.post(f"/v2/sandboxes/{made.id}/connect", json={"timeout": 77})
    assert answer.status_code == 503
    row = await row_of(impatient, made)
    assert (row.spec.desired, row.spec.deadlines.timeout_s) == (Desired.RUNNING, 77)


@pytest.mark.parametrize("call", ["pause", "connect", "timeout", "resume", "refreshes"])
async def test_what_is_not_there_is_404(impatient: Api, call: str) -> None:
    dead = await insert_sandbox(impatient.plane.db, impatient.project, state=State.FAILED)
    for ident in (new_id(), "nonsense", dead.id):
        body = {"timeout": 5} if call != "refreshes" else {}
        message(await impatient.http.post(f"/sandboxes/{ident}/{call}", json=body), 404)


async def test_time_asleep_does_not_count(impatient: Api) -> None:
    """The clock of such a timeout stands while it sleeps; all of it begins anew, and five minutes for a request."""
    db = impatient.plane.db
    made = await insert_sandbox(db, impatient.project, state=State.RUNNING)
    await db.execute(
        "UPDATE sandboxes SET timeout_s = 60, timeout_restarts = true, expires_at = now() + interval '9 s'"
        " WHERE id = $1",
        made.id,
    )

    async def moved(event: Event, why: str | None = None) -> Sandbox:
        row = await row_of(impatient, made)
        await db.execute("UPDATE sandboxes SET desired_reason = $2 WHERE id = $1", row.id, why)
        async with db.transaction() as tx:
            return await sandboxes.move(tx, row, event)

    def left_s(row: Sandbox) -> float:
        assert row.expires_at is not None
        return (row.expires_at - row.last_active_at).total_seconds()

    await moved(Event.SUSPEND_BEGUN)
    assert (await moved(Event.SUSPENDED)).expires_at is None
    await moved(Event.RESTORE_BEGUN)
    assert left_s(await moved(Event.RESTORED)) == 60
    await moved(Event.SUSPEND_BEGUN)
    await moved(Event.SUSPENDED)
    await moved(Event.RESTORE_BEGUN)
    assert left_s(await moved(Event.RESTORED, sandboxes.WOKEN)) == 300


async def test_a_network_is_replaced_as_a_whole(impatient: Api) -> None:
    made = await insert_sandbox(impatient.plane.db, impatient.project, state=State.RUNNING)
    await impatient.plane.db.execute(
        "UPDATE sandboxes SET e2b = $2 WHERE id = $1",
        made.id,
        {"network": {"maskRequestHost": "a.test", "denyOut": []}},
    )
    update = {"allowOut": ["example.test"], "denyOut": ["0.0.0.0/0"], "allow_internet_access": True}
    assert (await impatient.http.put(f"/sandboxes/{made.id}/network", json=update)).status_code == 204
    shown = (await impatient.http.get(f"/sandboxes/{made.id}")).json()
    assert shown["allowInternetAccess"] is True
    assert shown["network"] == {
        "maskRequestHost": "a.test", "allowOut": ["example.test"], "denyOut": ["0.0.0.0/0"],
    }  # fmt: skip
    policy = (await impatient.http.get(f"/v1/sandboxes/{made.id}/policy")).json()["policy"]
    assert policy["default"] == "deny"
    assert {rule["host"] for rule in policy["rules"]} == {"example.test"}
    answer = await impatient.http.put(f"/sandboxes/{made.id}/network", json={"allowOut": ["example.test"]})
    assert "ALL_TRAFFIC" in message(answer, 400)
    message(await impatient.http.put(f"/sandboxes/{new_id()}/network", json={}), 404)
