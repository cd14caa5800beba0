"""Builds from steps on the `/v1` surface."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import build_worker, control_plane
from tests.support.build_worker import BuildWorker
from tests.support.control_plane import Api
from tests.support.deployment import eventually
from tests.support.rows import DIGEST, insert_template

from space.controllers.builds import run_builds
from space.model.ids import WorkerId
from space.store.db import Database

ARCHIVE = b"archive"
NAME = hashlib.sha256(ARCHIVE).hexdigest()


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[BuildWorker]:
    """A worker that builds what the test says."""
    async with build_worker.serving(tmp_path / "worker.sock") as found:
        yield found


@pytest.fixture
async def api(db: Database, worker: BuildWorker, tmp_path: Path) -> AsyncIterator[Api]:
    """The api over that worker, with the base template and builds at work."""
    async with control_plane.api_over(db, tmp_path / "worker.sock") as api, asyncio.TaskGroup() as group:
        link = api.plane.workers.links[0]
        link.id, link.connected = WorkerId("w1"), True
        await insert_template(db, api.project, "base")
        loops = [group.create_task(loop) for loop in (run_builds(api.plane), api.plane.notices.run())]
        yield api
        for loop in loops:
            loop.cancel()


async def begin(api: Api, **wish: object) -> Any:
    return await api.http.post("/v1/template-builds", json={"name": "app", "source": "base", **wish})


async def test_a_build_is_followed_to_its_end(api: Api, worker: BuildWorker) -> None:
    steps = [{"kind": "RUN", "args": ["make"]}]
    made = await begin(api, steps=steps, tags=["v1"], start="serve", vcpus=2, memory_mib=1024)
    assert made.status_code == 202, made.text
    build = await worker.next()
    assert (build.wish.vcpus, build.wish.memory_mib, build.wish.start) == (2, 1024, "serve")
    assert build.wish.source.type == "template"
    build.say("hello")
    build.succeed()

    async def ended() -> Any:
        found = (await api.http.get(f"/v1/template-builds/{made.json()['id']}")).json()
        return found if found["status"] == "ready" else None

    found = await eventually(ended, within_s=30, what="the build's end")
    assert (found["digest"], found["tags"]) == (DIGEST, ["v1"])
    assert [line["text"] for line in found["lines"]] == ["hello"]
    rest = (await api.http.get(f"/v1/template-builds/{found['id']}?after=1")).json()
    assert rest["lines"] == []
    shown = await api.http.get("/v1/templates/app:v1")
    assert shown.json()["digest"] == DIGEST


async def test_what_is_no_template_is_an_image_as_a_container_is_run(api: Api, worker: BuildWorker) -> None:
    await begin(api, source="registry.example/app:1", registry={"username": "me", "password": "sesame"})
    build = await worker.next()
    assert build.wish.source.type == "image"
    assert build.wish.source.container
    assert build.wish.source.login is not None
    build.fail("not there", "base")


async def test_files_go_up_under_their_digest(api: Api, worker: BuildWorker) -> None:
    copy = [{"kind": "COPY", "args": ["a", "/b"], "files": NAME}]
    refused = await begin(api, steps=copy)
    assert (refused.status_code, NAME in refused.text) == (404, True)
    path = f"/v1/template-files/{NAME}"
    assert (await api.http.get(path)).status_code == 404
    put = await api.http.put(path, content=ARCHIVE)
    assert put.json() == {"sha256": NAME, "size_bytes": len(ARCHIVE)}
    assert (await api.http.get(path)).json() == put.json()
    assert (await begin(api, steps=copy)).status_code == 202
    build = await worker.next()
    assert build.wish.steps[0].files == NAME
    build.fail("enough")
    for odd in ("x", "A" * 64, "a" * 63):
        assert (await api.http.put(f"/v1/template-files/{odd}", content=b"")).status_code == 404


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"steps": [{"kind": "ADD", "args": ["x"]}]}, "kind"),
        ({"steps": [{"kind": "RUN", "args": []}]}, "RUN"),
        ({"steps": [{"kind": "ENV", "args": ["A"]}]}, "ENV"),
        ({"steps": [{"kind": "COPY", "args": ["a", "b"]}]}, "COPY"),
        ({"name": "No Name"}, "name"),
        ({"tags": ["A B"]}, "tag"),
        ({"start": "a\0b"}, "NUL"),
        ({"source": "a\0b"}, "NUL"),
        ({"source": "debian", "registry": {"username": "a\0b", "password": "x"}}, "NUL"),
        ({"vcpus": 0}, "vcpus"),
        ({"recipe": "base"}, "recipe"),
    ],
)
async def test_what_makes_no_sense_is_told_at_once(api: Api, wish: dict[str, object], says: str) -> None:
    refused = await begin(api, **wish)
    assert refused.status_code == 422, refused.text
    assert says in refused.text
    row = await api.plane.db.fetchrow("SELECT count(*) AS count FROM template_builds")
    assert row is not None
    assert row["count"] == 0


async def test_a_build_is_its_projects(api: Api) -> None:
    for odd in ("00000000-0000-0000-0000-000000000000", "x"):
        assert (await api.http.get(f"/v1/template-builds/{odd}")).status_code in (404, 422)
