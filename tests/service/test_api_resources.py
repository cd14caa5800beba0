"""The `/v1` surface over real rows: lists, cursors, keys, templates, operations, events."""

import asyncio
import json
from typing import Any

import pytest
from tests.support.control_plane import Api
from tests.support.rows import DIGEST, insert_sandbox, insert_template

from space.control import keys
from space.model.lifecycle import State
from space.store import keys as key_rows
from space.store import projects, sandboxes, template_names, wishes
from space.store.sandboxes import Lease

Json = dict[str, Any]


async def other_projects_key(api: Api) -> str:
    """Return a key of another project on the same server."""
    project = await projects.ensure(api.plane.db, "other")
    _, key = await keys.create(api.plane.db, project, "other")
    return key


async def test_a_sandbox_is_shown_without_its_secrets(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(
        api.plane.db, api.project, state=State.PAUSED, reason="disk_full", worker="w1", env={"K": "s3cret"}
    )
    answer = await api.http.get(f"/v1/sandboxes/{made.id}")
    shown = answer.json()
    assert (shown["id"], shown["state"], shown["reason"], shown["worker"]) == (made.id, "paused", "disk_full", "w1")
    assert (shown["template"], shown["template_digest"]) == ("base", DIGEST)
    assert "s3cret" not in answer.text
    assert "t0ken" not in answer.text


async def test_lists_by_label_state_and_cursor(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    states = [State.RUNNING, State.FAILED, State.DELETED, State.CREATING, State.RUNNING]
    made = [
        (await insert_sandbox(api.plane.db, api.project, state=state, labels={"n": str(n), "url": "a:b"})).id
        for n, state in enumerate(states)
    ]

    async def listed(query: str) -> list[str]:
        return [found["id"] for found in (await api.http.get(f"/v1/sandboxes?{query}")).json()["sandboxes"]]

    assert await listed("") == [made[4], made[3], made[1], made[0]], "newest first, deleted ones left out"
    assert await listed("state=deleted") == [made[2]]
    assert await listed("state=failed&state=creating") == [made[3], made[1]]
    assert await listed("label=n:1") == [made[1]]
    assert await listed("label=n:1&label=url:a:b") == [made[1]]
    assert await listed("label=n:1&label=n:0") == [], "it would have to have both"
    assert await listed("label=n:0&label=n:0") == [made[0]]
    found, cursor = [], ""
    while True:
        page = (
            await api.http.get("/v1/sandboxes", params={"limit": 3} | ({"cursor": cursor} if cursor else {}))
        ).json()
        found += [sandbox["id"] for sandbox in page["sandboxes"]]
        if page["next_cursor"] is None:
            break
        cursor = page["next_cursor"]
    assert found == [made[4], made[3], made[1], made[0]]


async def test_another_projects_things_do_not_exist(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    own = (await api.http.get("/v1/keys")).json()["keys"][0]["id"]
    async with api.anonymous({"x-api-key": await other_projects_key(api)}) as http:
        assert (await http.get("/v1/sandboxes")).json()["sandboxes"] == []
        assert (await http.get("/v1/templates")).json()["templates"] == []
        for method, path in [
            ("GET", f"/v1/sandboxes/{made.id}"),
            ("DELETE", f"/v1/sandboxes/{made.id}"),
            ("GET", f"/v1/sandboxes/{made.id}/events"),
            ("GET", "/v1/templates/base"),
            ("DELETE", f"/v1/templates/{DIGEST}"),
            ("DELETE", f"/v1/keys/{own}"),
        ]:
            assert (await http.request(method, path)).status_code == 404, (method, path)
        assert (await http.post("/v1/sandboxes")).json()["code"] == "template_not_found"
    assert (await api.http.get(f"/v1/sandboxes/{made.id}")).status_code == 200


async def test_a_deleted_sandbox_is_gone_but_its_record_is_not(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.DELETED)
    assert (await api.http.get(f"/v1/sandboxes/{made.id}")).status_code == 404
    assert (await api.http.delete(f"/v1/sandboxes/{made.id}")).status_code == 204
    told = (await api.http.get(f"/v1/sandboxes/{made.id}/events")).json()["events"]
    assert [(event["sequence"], event["type"], event["state"]) for event in told] == [
        (1, "created", "creating"),
        (2, "delete_asked", "deleting"),
        (3, "deleted", "deleted"),
    ]
    later = (await api.http.get(f"/v1/sandboxes/{made.id}/events?after=1&limit=1")).json()["events"]
    assert [event["sequence"] for event in later] == [2]


async def test_a_sandbox_that_has_no_vm_is_deleted_at_once(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project)
    accepted = await api.http.delete(f"/v1/sandboxes/{made.id}?wait=0")
    assert accepted.status_code == 202
    assert accepted.headers["location"] == f"/v1/operations/{accepted.json()['id']}"
    assert (await api.http.delete(f"/v1/sandboxes/{made.id}")).status_code == 204
    operation = (await api.http.get(accepted.headers["location"])).json()
    assert (operation["kind"], operation["status"], operation["sandbox_id"]) == ("delete", "succeeded", made.id)


async def test_keys_are_made_shown_once_and_revoked(api: Api) -> None:
    made = (await api.http.post("/v1/keys", content=b'{"label": "ci"}')).json()
    async with api.anonymous({"x-api-key": made["key"]}) as http:
        assert (await http.get("/v1/keys")).status_code == 200
        shown = (await api.http.get("/v1/keys")).json()["keys"]
        assert [(key["label"], "key" in key) for key in shown] == [("test", False), ("ci", False)]
        assert shown[1]["last_used_at"] is not None
        assert (await api.http.delete(f"/v1/keys/{made['id']}")).status_code == 204
        assert (await api.http.delete(f"/v1/keys/{made['id']}")).status_code == 204, "again"
        async with asyncio.timeout(10):
            while (await http.get("/v1/keys")).status_code != 401:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("label", ["", "x" * 101, "tab\t", "nul\0"])
async def test_a_bad_label_of_a_key_is_refused(refusing_api: Api, label: str) -> None:
    answer = await refusing_api.http.post("/v1/keys", content=json.dumps({"label": label}).encode())
    assert (answer.status_code, answer.json()["detail"].startswith("label")) == (422, True)


async def test_the_first_key_is_made_once_and_again_when_it_is_lost(api: Api) -> None:
    first = await keys.ensure_first_key(api.plane.db, "")
    assert await keys.ensure_first_key(api.plane.db, first) == first
    assert await keys.ensure_first_key(api.plane.db, "e2b_" + "0" * 40) != first
    found = await keys.authenticate(api.plane.db, first)
    await key_rows.revoke(api.plane.db, found.project, found.id)
    assert await keys.ensure_first_key(api.plane.db, first) != first


async def test_templates_by_name_and_digest(api: Api) -> None:
    await insert_template(api.plane.db, api.project, "base")
    for ident in ("base", DIGEST):
        shown = (await api.http.get(f"/v1/templates/{ident}")).json()
        assert (shown["name"], shown["digest"], shown["disk_mib"]) == ("base", DIGEST, 10240)
    assert [t["name"] for t in (await api.http.get("/v1/templates")).json()["templates"]] == ["base"]


async def test_a_name_that_is_deleted_takes_no_other_with_it(api: Api) -> None:
    for name in ("base", "again"):
        await insert_template(api.plane.db, api.project, name)

    async def shown() -> list[str]:
        return [one["name"] for one in (await api.http.get("/v1/templates")).json()["templates"]]

    assert await shown() == ["again", "base"], "one template of two names"
    assert (await api.http.get("/v1/templates/base")).json()["name"] == "base"
    await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    assert (await api.http.delete("/v1/templates/again")).status_code == 204
    assert await shown() == ["base"]
    assert (await api.http.delete("/v1/templates/again")).status_code == 404
    assert (await api.http.delete("/v1/templates/base")).status_code == 409


async def test_a_tag_that_is_deleted_takes_nothing_else_with_it(api: Api) -> None:
    template = await insert_template(api.plane.db, api.project)
    async with api.plane.db.transaction() as tx:
        await template_names.set_tags(tx, api.project, "base", ["v1", "v2"], template.digest, None)
    assert (await api.http.delete("/v1/templates/base:v1")).status_code == 204
    assert (await api.http.get("/v1/templates/base:v1")).status_code == 404
    assert (await api.http.get("/v1/templates/base:v2")).json()["digest"] == DIGEST


async def test_a_template_in_use_stays(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    answer = await api.http.delete("/v1/templates/base")
    assert (answer.status_code, answer.json()["code"]) == (409, "template_in_use")
    await wishes.ask_delete(api.plane.db, made.id)
    held = await sandboxes.acquire(api.plane.db, made.id, Lease("test", 10))
    assert held is not None
    answer = await api.http.delete("/v1/templates/base")
    assert answer.status_code == 409, "still running"


async def test_a_build_without_a_worker_is_an_ordinary_error(refusing_api: Api) -> None:
    answer = await refusing_api.http.post("/v1/templates", content=b'{"name": "base"}')
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    answer = await refusing_api.http.post("/v1/templates", content=b'{"name": "Not A Name"}')
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument")


async def test_figures(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    await api.http.get("/v1/sandboxes")
    text = (await api.http.get("/metrics")).text
    assert 'space_sandboxes{state="running"} 1.0' in text
    assert "space_workers_connected 0.0" in text
    assert 'space_api_request_seconds_count{method="GET",route="/v1/sandboxes",status="200"} 1.0' in text
