"""What other projects may do with a template, public or not."""

from collections.abc import AsyncIterator

import httpx2
import pytest
from tests.service.test_e2b_surface import message
from tests.support.control_plane import Api
from tests.support.rows import DIGEST, insert_template

from space.control import keys, templates, waiting
from space.model.errors import Conflict
from space.model.ids import ProjectId
from space.store import projects


@pytest.fixture
async def other(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of another project than the one that has the template `tool`."""
    monkeypatch.setattr(waiting, "WAIT_UNAVAILABLE_S", 0.05)
    await insert_template(api.plane.db, api.project, "tool")
    project = await projects.ensure(api.plane.db, "other")
    _, key = await keys.create(api.plane.db, project, "test")
    async with api.anonymous({"x-api-key": key}) as client:
        yield client


async def ident_of(api: Api) -> str:
    """Return the id of the template."""
    return str((await api.http.get("/templates/aliases/tool")).json()["templateID"])


async def publish(api: Api, *, public: bool) -> None:
    assert (await api.http.patch("/v2/templates/tool", json={"public": public})).json() == {"names": ["tool"]}


async def started(api: Api, template: str) -> list[str]:
    """Return what the sandboxes of the other project that stand for a create with this template were made of."""
    rows = await api.plane.db.fetch(
        "SELECT s.template FROM sandboxes s JOIN projects p ON p.id = s.project_id"
        " WHERE p.name = 'other' AND s.template_name = $1",
        template,
    )
    return [row["template"] for row in rows]


async def test_a_private_template_does_not_exist_for_others(api: Api, other: httpx2.AsyncClient) -> None:
    ident = await ident_of(api)
    for reference in ("tool", "default%2Ftool", f"{api.project}%2Ftool", ident):
        for path in (f"/templates/aliases/{reference}", f"/templates/{reference}"):
            message(await other.get(path), 404)
        name = reference.replace("%2F", "/")
        message(await other.post("/v2/sandboxes", json={"templateID": name}), 404)
        assert (await other.post("/v1/sandboxes", json={"template": name})).status_code == 404
    assert await api.plane.db.fetch("SELECT 1 FROM sandboxes") == []


async def test_a_public_one_is_used_by_its_id_or_by_project_and_name(api: Api, other: httpx2.AsyncClient) -> None:
    await publish(api, public=True)
    ident = await ident_of(api)
    for reference in (ident, "default/tool", f"{api.project}/tool", "default/tool:default"):
        quoted = reference.replace("/", "%2F")
        assert (await other.get(f"/templates/aliases/{quoted}")).json() == {"templateID": ident, "public": True}
        assert (await other.get(f"/templates/{quoted}")).json()["names"] == ["tool"]
        for path, field in (("/v2/sandboxes", "templateID"), ("/v1/sandboxes", "template")):
            assert (await other.post(path, json={field: reference})).status_code == 503, "there is no worker"
        assert set(await started(api, reference)) == {DIGEST}
    message(await other.get("/templates/aliases/tool"), 404)
    message(await other.get("/templates/aliases/other%2Ftool"), 404)
    assert (await other.get("/templates")).json() == []
    await publish(api, public=False)
    message(await other.post("/v2/sandboxes", json={"templateID": ident}), 404)


async def test_only_its_project_changes_a_public_template(api: Api, other: httpx2.AsyncClient) -> None:
    await publish(api, public=True)
    ident = await ident_of(api)
    for reference in (ident, "default%2Ftool"):
        message(await other.delete(f"/templates/{reference}"), 404)
        message(await other.patch(f"/templates/{reference}", json={"public": False}), 404)
        message(await other.get(f"/templates/{reference}/tags"), 404)
        tags = {"target": reference.replace("%2F", "/"), "tags": ["mine"]}
        message(await other.post("/templates/tags", json=tags), 404)
    assert (await api.http.get("/templates/aliases/tool")).json()["public"] is True


async def test_a_namespace_that_is_no_project_with_such_a_template_means_ones_own(
    api: Api, other: httpx2.AsyncClient
) -> None:
    await publish(api, public=True)
    row = await api.plane.db.fetchrow("SELECT id FROM projects WHERE name = 'other'")
    assert row is not None
    await insert_template(api.plane.db, ProjectId(row["id"]), "mine")
    mine = (await other.get("/templates/aliases/mine")).json()["templateID"]
    for reference in ("nobodys-team%2Fmine", "default%2Fmine"):
        assert (await other.get(f"/templates/aliases/{reference}")).json()["templateID"] == mine


async def test_a_template_that_anothers_sandbox_runs_on_is_in_use(api: Api, other: httpx2.AsyncClient) -> None:
    await publish(api, public=True)
    await other.post("/v2/sandboxes", json={"templateID": "default/tool"})
    await api.plane.db.execute("UPDATE sandboxes SET state = 'running'")
    with pytest.raises(Conflict, match="in use"):
        await templates.delete(api.plane, api.project, "tool")
