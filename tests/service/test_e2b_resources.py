"""E2B's secrets, snapshots, logs and teams over real rows."""

import pytest
from tests.service.test_e2b_surface import message
from tests.support.control_plane import Api
from tests.support.rows import insert_sandbox, insert_template

from space.model.ids import new_id
from space.model.lifecycle import State

CANARY = "s3cret-v4lue"


async def test_a_secret_from_its_first_value_to_its_end(api: Api) -> None:
    made = await api.http.post(
        "/secrets", json={"name": "openai-api.key", "value": CANARY, "metadata": {"env": "test"}}
    )
    assert made.status_code == 201
    secret = made.json()
    assert secret["secretID"].startswith("sec_")
    assert (secret["name"], secret["currentVersion"], secret["metadata"]) == ("openai-api.key", 1, {"env": "test"})
    again = await api.http.post("/secrets", json={"name": "openai-api.key", "value": "other"})
    assert "already" in message(again, 409)
    for selector in (secret["secretID"], "openai-api.key", "openai%2Dapi.key"):
        assert (await api.http.get(f"/secrets/{selector}")).json() == secret
    second = await api.http.post(f"/secrets/{secret['secretID']}", json={"value": CANARY})
    assert (second.json()["currentVersion"], second.json()["metadata"]) == (2, {"env": "test"})
    third = await api.http.post("/secrets/openai-api.key", json={"value": CANARY, "metadata": {}})
    assert (third.json()["currentVersion"], third.json()["metadata"]) == (3, {})
    assert (await api.http.get("/v1/secrets")).json()["secrets"][0]["version"] == 3, "it is the same secret there"
    assert all(CANARY not in answer.text for answer in (made, second, third, await api.http.get("/secrets")))
    assert (await api.http.delete("/secrets/openai-api.key")).status_code == 204
    for answer in (
        await api.http.delete(f"/secrets/{secret['secretID']}"),
        await api.http.get("/secrets/openai-api.key"),
        await api.http.post("/secrets/openai-api.key", json={"value": "x"}),
        await api.http.get(f"/secrets/sec_{new_id()}"),
    ):
        message(answer, 404)


@pytest.mark.parametrize(
    "body",
    [
        {"name": "A"}, {"name": "a b", "value": CANARY}, {"name": "A", "value": CANARY + "\n"}, {"value": CANARY},
        {"name": "A", "value": [CANARY]}, {"name": "A", "value": CANARY, "metadata": {"a": "\0"}},
        {"name": "A", "value": CANARY, "metadata": {"a": "x" * 20_000}},
    ],
)  # fmt: skip
async def test_a_bad_secret_is_refused_without_being_shown(api: Api, body: dict[str, object]) -> None:
    answer = await api.http.post("/secrets", json=body)
    assert CANARY not in message(answer, 400)


async def test_secrets_by_pages(api: Api) -> None:
    for name in "abc":
        assert (await api.http.post("/secrets", json={"name": name, "value": "v"})).status_code == 201
    first = await api.http.get("/secrets?limit=2")
    assert [one["name"] for one in first.json()] == ["a", "b"]
    second = await api.http.get(f"/secrets?limit=2&nextToken={first.headers['x-next-token']}")
    assert [one["name"] for one in second.json()] == ["c"]
    assert "x-next-token" not in second.headers
    message(await api.http.get("/secrets?nextToken=nonsense"), 400)


async def test_snapshots_that_are_not_there(api: Api) -> None:
    template = await insert_template(api.plane.db, api.project)
    assert (await api.http.get("/snapshots")).json() == [], "a template that was built is none"
    message(await api.http.delete(f"/templates/{new_id()}%3Adefault"), 404)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    assert "in use" in message(await api.http.delete("/templates/team%2Fbase%3Adefault"), 400)
    assert "name" in message(await api.http.post(f"/sandboxes/{made.id}/snapshots", json={"name": "NO way"}), 400)
    message(await api.http.post(f"/sandboxes/{made.id}/snapshots", json={"name": template.name}), 409)
    for call in ("snapshots", "fork"):
        message(await api.http.post(f"/sandboxes/{new_id()}/{call}"), 404)
    for count in (0, 21):
        message(await api.http.post(f"/sandboxes/{made.id}/fork", json={"count": count}), 400)


async def test_logs_are_what_happened(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.FAILED, reason="The VMM was killed.")
    logs = (await api.http.get(f"/sandboxes/{made.id}/logs")).json()
    assert [one["fields"]["event"] for one in logs["logEntries"]] == ["created", "started", "failed"]
    assert len(logs["logs"]) == 3
    last = logs["logEntries"][-1]
    assert (last["level"], last["message"]) == ("error", "sandbox failed: The VMM was killed.")

    async def events(query: str) -> list[str]:
        answer = await api.http.get(f"/v2/sandboxes/{made.id}/logs?{query}")
        assert answer.status_code == 200, answer.text
        return [one["fields"]["event"] for one in answer.json()["logs"]]

    assert await events("") == ["created", "started", "failed"]
    assert await events("direction=backward&limit=2") == ["failed", "started"]
    assert await events("level=warn") == await events("search=failed") == ["failed"]
    assert await events("cursor=0&direction=backward") == []
    assert await events("cursor=99999999999999") == []
    message(await api.http.get(f"/v2/sandboxes/{made.id}/logs?limit=1001"), 400)
    message(await api.http.get(f"/sandboxes/{new_id()}/logs"), 404)


async def test_the_team_is_the_project_of_the_key(api: Api) -> None:
    (team,) = (await api.http.get("/teams")).json()
    assert team == {"teamID": api.project, "name": "default", "apiKey": api.key, "isDefault": True}


async def test_what_is_used_is_only_known_of_what_has_run(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.SUSPENDED)
    assert (await api.http.get(f"/sandboxes/{made.id}/metrics?start=0&end=10")).json() == []
    assert (await api.http.get(f"/v1/sandboxes/{made.id}/usage")).json() == {"samples": []}
    many = await api.http.get(f"/sandboxes/metrics?sandbox_ids={made.id},{new_id()}&sandbox_ids=odd")
    assert many.json() == {"sandboxes": {}}
    message(await api.http.get(f"/sandboxes/{new_id()}/metrics"), 404)
    message(await api.http.get(f"/sandboxes/{made.id}/metrics?start=5&end=4"), 400)
    message(await api.http.get(f"/sandboxes/metrics?sandbox_ids={','.join(new_id() for _ in range(101))}"), 400)
