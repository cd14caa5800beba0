"""Builds of templates as rows: their queue, logs, names and tags, and that no status stays when somebody dies."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from tests.support import build_worker, control_plane
from tests.support.build_worker import BuildWorker
from tests.support.control_plane import Api
from tests.support.deployment import eventually
from tests.support.rows import DIGEST, insert_sandbox, insert_template

from space.control import keys, templates
from space.controllers.builds import AT_ONCE, give_up_lost, run_builds
from space.model.ids import WorkerId
from space.model.lifecycle import State
from space.store import builds as rows
from space.store import projects
from space.store.db import Database

OTHER = "sha256:" + "b" * 64
Json = dict[str, Any]


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[BuildWorker]:
    """A worker that builds what the test says."""
    async with build_worker.serving(tmp_path / "worker.sock") as found:
        yield found


@pytest.fixture
async def idle(db: Database, worker: BuildWorker, tmp_path: Path) -> AsyncIterator[Api]:
    """The api over that worker, with the base template; nobody takes builds from the queue."""
    async with control_plane.api_over(db, tmp_path / "worker.sock") as api:
        link = api.plane.workers.links[0]
        link.id, link.connected = WorkerId("w1"), True
        await insert_template(db, api.project, "base")
        yield api


@pytest.fixture
async def api(idle: Api) -> AsyncIterator[Api]:
    """Likewise, and the queue is worked on."""
    async with running(idle):
        yield idle


@contextlib.asynccontextmanager
async def running(api: Api) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        loops = [group.create_task(loop) for loop in (run_builds(api.plane), api.plane.notices.run())]
        yield
        for loop in loops:
            loop.cancel()


async def call(api: Api, method: str, path: str, status: int, body: object = None) -> Any:
    answer = await api.http.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


async def requested(api: Api, name: str = "app", **more: object) -> Json:
    found: Json = await call(api, "POST", "/v3/templates", 202, {"name": name, **more})
    return found


async def begun(api: Api, name: str = "app", **more: object) -> Json:
    made = await requested(api, name)
    wish = {"fromTemplate": "base", "steps": [{"type": "RUN", "args": ["make"]}], **more}
    await call(api, "POST", f"/v2/templates/{made['templateID']}/builds/{made['buildID']}", 202, wish)
    return made


async def status(api: Api, build: Json, offset: int = 0, **query: object) -> Json:
    path = f"/templates/{build['templateID']}/builds/{build['buildID']}/status"
    found: Json = await call(api, "GET", f"{path}?{urlencode({'logsOffset': offset, **query})}", 200)
    return found


async def ended(api: Api, build: Json) -> Json:
    async def done() -> Json | None:
        found = await status(api, build)
        return found if found["status"] in ("ready", "error") else None

    found: Json = await eventually(done, within_s=30, what="the build's end")
    return found


async def test_a_build_waits_for_a_worker_that_is_being_restarted(api: Api, worker: BuildWorker) -> None:
    """A worker's restart takes less than anybody who is told to try again needs for that."""
    link = api.plane.workers.links[0]
    link.connected = False
    made = await begun(api)
    assert (await status(api, made))["status"] == "building"
    assert worker.builds.empty()
    link.connected = True
    (await worker.next()).succeed(OTHER)
    assert (await ended(api, made))["status"] == "ready"


async def test_a_build_runs_and_its_name_stands_for_what_it_made(api: Api, worker: BuildWorker) -> None:
    made = await begun(api, "app:v1")
    assert made["tags"] == ["v1"]
    assert (await status(api, made))["status"] == "building", "it was at work when begin answered"
    build = await worker.next()
    assert build.wish.scope == api.project
    assert build.wish.egress is not None
    assert build.wish.egress.policy == {"default": "allow"}
    build.say("hello")
    build.succeed(OTHER)
    found = await ended(api, made)
    assert found["status"] == "ready"
    assert [entry["message"] for entry in found["logEntries"]] == ["hello"]
    for reference in ("app:v1", f"{made['templateID']}:v1", "team/app:v1", OTHER):
        template = await templates.find(api.plane, api.project, reference)
        assert template.digest == OTHER
    assert await templates.find_or_none(api.plane, api.project, "app") is None, "it has no tag `default`"


async def test_logs_are_read_from_an_offset_to_their_end(api: Api, worker: BuildWorker) -> None:
    made = await begun(api)
    build = await worker.next()
    for n in range(250):
        build.say(f"line {n}\0", level="warn" if n % 50 == 0 else "info")
    build.succeed()
    await ended(api, made)
    seen: list[str] = []
    while found := (await status(api, made, len(seen)))["logEntries"]:
        assert len(found) <= 100
        seen += [entry["message"] for entry in found]
    assert seen == [f"line {n}" for n in range(250)]
    assert len((await status(api, made, level="warn"))["logEntries"]) == 5
    assert len((await status(api, made, level="warn", offset=0, limit=2))["logEntries"]) == 2
    path = f"/templates/{made['templateID']}/builds/{made['buildID']}/logs"
    back = await call(api, "GET", f"{path}?direction=backward&limit=1", 200)
    assert back["logs"][0]["message"] == "line 249"
    assert (await call(api, "GET", f"{path}?cursor={10**17}", 200))["logs"] == [], "later than PostgreSQL knows"


async def test_a_failure_names_reason_and_step(api: Api, worker: BuildWorker) -> None:
    made = await begun(api)
    (await worker.next()).fail("failed to run command 'make'", "1")
    found = await ended(api, made)
    assert found["reason"] == {"message": "failed to run command 'make'", "step": "1", "logEntries": []}
    assert await templates.find_or_none(api.plane, api.project, "app") is None


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"fromTemplate": "nothing"}, "nothing"),
        ({"fromTemplate": None, "fromImage": "e2bdev/base:latest", "force": True}, None),
        ({"fromTemplate": None, "fromImage": "x.example/y", "fromImageRegistry": {"type": "aws"}}, "aws"),
    ],
)
async def test_what_to_build_on(api: Api, worker: BuildWorker, wish: Json, says: str | None) -> None:
    made = await begun(api, **wish)
    if says is None:
        build = await worker.next()
        assert build.wish.source.model_dump() == {"type": "template", "digest": DIGEST}
        build.succeed(OTHER)
    found = await ended(api, made)
    if says is not None:
        assert says in found["reason"]["message"]
        assert found["reason"]["step"] == "base"


async def test_a_password_is_sealed_until_it_is_needed_and_then_forgotten(idle: Api, worker: BuildWorker) -> None:
    login = {"type": "registry", "username": "me", "password": "sesame-1234"}
    made = await begun(idle, fromTemplate=None, fromImage="registry.example/app:1", fromImageRegistry=login)
    row = await idle.plane.db.fetchrow("SELECT row_to_json(b)::text AS text, sealed FROM template_builds b")
    assert row is not None
    assert row["sealed"] is not None
    assert "sesame" not in row["text"]
    async with running(idle):
        build = await worker.next()
        source = build.wish.source
        assert source.type == "image"
        assert source.login is not None
        assert (source.login.username, source.login.password.get_secret_value()) == ("me", "sesame-1234")
        build.succeed()
        await ended(idle, made)
    row = await idle.plane.db.fetchrow("SELECT sealed FROM template_builds")
    assert row is not None
    assert row["sealed"] is None


async def test_more_builds_than_places_wait_in_turn(api: Api, worker: BuildWorker) -> None:
    made = [await begun(api, f"app-{n}") for n in range(AT_ONCE + 1)]
    states = [(await status(api, one))["status"] for one in made]
    assert states == ["building"] * AT_ONCE + ["waiting"]
    first = await worker.next()
    first.fail("no")
    others = [await worker.next() for _ in range(AT_ONCE)]
    for one in others:
        one.succeed()
    assert [(await ended(api, one))["status"] for one in made].count("ready") == AT_ONCE


async def test_of_two_builds_of_a_name_the_one_that_ends_last_wins(api: Api, worker: BuildWorker) -> None:
    first, one = await begun(api), await worker.next()
    second, two = await begun(api), await worker.next()
    assert first["templateID"] == second["templateID"]
    two.succeed(OTHER)
    assert (await ended(api, second))["status"] == "ready"
    assert (await templates.find(api.plane, api.project, "app")).digest == OTHER
    one.succeed(DIGEST)
    assert (await ended(api, first))["status"] == "ready"
    assert (await templates.find(api.plane, api.project, "app")).digest == DIGEST
    tags = await call(api, "GET", "/templates/app/tags", 200)
    assert [tag["buildID"] for tag in tags] == [first["buildID"]]


async def test_a_worker_that_goes_away_ends_the_build(api: Api, worker: BuildWorker) -> None:
    made = await begun(api)
    build = await worker.next()
    build.say("at work")
    build.lines.put_nowait(None)
    found = await ended(api, made)
    assert found["status"] == "error"
    assert "worker went away" in found["reason"]["message"]
    assert [entry["message"] for entry in found["logEntries"]] == ["at work"]


async def test_a_process_that_is_gone_leaves_no_build_at_work(idle: Api) -> None:
    """Its lease is over: whoever looks next ends the build."""
    made = await begun(idle)
    assert (await status(idle, made))["status"] == "waiting"
    assert await rows.claim(idle.plane.db, "a process that dies", ttl_s=0) is not None
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(give_up_lost(idle.plane))
        found = await ended(idle, made)
        loop.cancel()
    assert "went away" in found["reason"]["message"]


async def test_a_build_that_nobody_begins_ends(idle: Api) -> None:
    made = await requested(idle)
    await idle.plane.db.execute("UPDATE template_builds SET created_at = now() - interval '1 day'")
    await rows.give_up_lost(idle.plane.db)
    assert (await status(idle, made))["status"] == "error"
    wish = {"fromTemplate": "base"}
    await call(idle, "POST", f"/v2/templates/app/builds/{made['buildID']}", 409, wish)


async def test_deleting_a_template_ends_its_build(api: Api, worker: BuildWorker) -> None:
    made = await begun(api)
    build = await worker.next()
    await call(api, "DELETE", f"/templates/{made['templateID']}", 204)
    async with asyncio.timeout(30):
        await build.left.wait()
    path = f"/templates/{made['templateID']}/builds/{made['buildID']}/status"
    await call(api, "GET", path, 404)


async def test_files_go_to_the_builds_worker_by_a_link_that_cannot_be_changed(idle: Api, worker: BuildWorker) -> None:
    made = await requested(idle)
    name = "ab" * 32
    found = await call(idle, "GET", f"/templates/{made['templateID']}/files/{name}", 201)
    assert found["present"] is False
    link = urlsplit(found["url"])
    assert link.netloc == "space", "the host that the client has reached us at"
    given = {key: values[0] for key, values in parse_qs(link.query).items()}
    async with idle.anonymous() as http:
        for part, other in {
            "name": "cd" * 32, "project": "x" * 20, "worker": "w2", "expires": str(int(time.time()) + 10**6),
            "signature": "0" * 64,
        }.items():  # fmt: skip
            refused = await http.put(f"{link.path}?{urlencode({**given, part: other})}", content=b"x")
            assert refused.status_code == 401, part
        assert (await http.put(link.path, content=b"x")).status_code == 401
        late = {**given, "expires": str(int(time.time()) - 1)}
        text = "\n".join(late[part] for part in ("project", "worker", "name", "expires"))
        late["signature"] = idle.plane.vault.sign(text, link.path)
        assert (await http.put(f"{link.path}?{urlencode(late)}", content=b"x")).status_code == 401
        assert worker.files == {}
        assert (await http.put(f"{link.path}?{link.query}", content=b"archive")).status_code == 200
    assert worker.files == {(idle.project, name): b"archive"}
    assert (await call(idle, "GET", f"/templates/app/files/{name}", 201))["present"] is True


async def test_tags_are_given_and_taken(api: Api, worker: BuildWorker) -> None:
    made = await begun(api, "app:v1")
    (await worker.next()).succeed(OTHER)
    await ended(api, made)
    given = await call(api, "POST", "/templates/tags", 201, {"target": "app:v1", "tags": ["app:new", "default"]})
    assert given == {"tags": ["app:new", "default"], "buildID": made["buildID"]}
    tags = await call(api, "GET", f"/templates/{made['templateID']}/tags", 200)
    assert {tag["tag"] for tag in tags} == {"v1", "new", "default"}
    assert (await templates.find(api.plane, api.project, "app")).digest == OTHER
    await call(api, "DELETE", "/templates/tags", 404, {"name": "app", "tags": ["new", "nothing"]})
    assert len(await call(api, "GET", "/templates/app/tags", 200)) == 3, "all or none"
    await call(api, "DELETE", "/templates/tags", 204, {"name": "app", "tags": ["default", "new"]})
    assert await call(api, "GET", "/templates/app/tags/count", 200) == {"total": 1}
    assert (await call(api, "GET", "/templates/app/tags/exists?tag=v1", 200))["exists"] is True
    await call(api, "POST", "/templates/tags", 404, {"target": "app:nothing", "tags": ["x"]})
    await call(api, "POST", "/templates/tags", 400, {"target": "app:v1", "tags": ["X Y"]})
    base = await call(api, "POST", "/templates/tags", 201, {"target": "base", "tags": ["old"]})
    assert uuid.UUID(base["buildID"]), "one that was not built from steps has one too"


async def test_templates_are_listed_shown_and_deleted(api: Api, worker: BuildWorker) -> None:
    for name in ("a", "b"):
        made = await begun(api, name)
        (await worker.next()).succeed("sha256:" + name * 64)
        await ended(api, made)
    assert await call(api, "GET", "/templates/aliases/b", 200) == {"templateID": made["templateID"], "public": False}
    await call(api, "GET", "/templates/aliases/nothing", 404)
    page = await api.http.get("/v2/templates?limit=2")
    assert [one["names"] for one in page.json()] == [["b"], ["a"]]
    rest = await api.http.get(f"/v2/templates?limit=2&nextToken={page.headers['x-next-token']}")
    assert [one["names"] for one in rest.json()] == [["base"]]
    assert "x-next-token" not in rest.headers
    shown = await call(api, "GET", "/templates/b", 200)
    assert [build["buildID"] for build in shown["builds"]] == [made["buildID"]]
    assert (shown["buildStatus"], shown["cpuCount"], shown["buildCount"]) == ("ready", 1, 1)
    assert await call(api, "PATCH", "/v2/templates/b", 200, {"public": True}) == {"names": ["b"]}
    assert (await call(api, "GET", "/templates/b", 200))["public"] is True
    await call(api, "DELETE", "/templates/b", 204)
    await call(api, "GET", "/templates/b", 404)
    assert worker.deleted == ["sha256:" + "b" * 64]
    assert [one["names"] for one in await call(api, "GET", "/templates", 200)] == [["a"], ["base"]]


async def test_a_template_in_use_is_not_deleted(api: Api, worker: BuildWorker) -> None:
    made = await begun(api)
    (await worker.next()).succeed(DIGEST)
    await ended(api, made)
    await insert_sandbox(api.plane.db, api.project, state=State.RUNNING)
    await call(api, "DELETE", "/templates/app", 204)
    assert worker.deleted == [], "base stands for the same"
    await call(api, "DELETE", "/templates/base", 400)


async def test_other_projects_see_nothing_of_it(api: Api, worker: BuildWorker) -> None:
    made = await begun(api)
    await worker.next()
    async with other_project(api) as http:
        for path in (
            f"/templates/{made['templateID']}", "/templates/aliases/app", "/templates/app/tags",
            f"/templates/{made['templateID']}/builds/{made['buildID']}/status", f"/templates/app/files/{'a' * 64}",
        ):  # fmt: skip
            assert (await http.get(path)).status_code == 404, path
        assert (await http.get("/v2/templates")).json() == []
        begin = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
        assert (await http.post(begin, json={"fromTemplate": "base"})).status_code == 404


@contextlib.asynccontextmanager
async def other_project(api: Api) -> AsyncIterator[Any]:
    project = await projects.ensure(api.plane.db, "another")
    _, key = await keys.create(api.plane.db, project, "test")
    async with api.anonymous({"x-api-key": key}) as http:
        yield http


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "name"),
        ({"name": "Not A Name"}, "cannot name"),
        ({"name": "app:"}, "tag"),
        ({"name": "app", "tags": ["A B"]}, "tag"),
        ({"name": "app", "memoryMB": 1}, "memory_mib"),
        ({"name": "app", "cpuCount": 1000}, "vcpus"),
    ],
)
async def test_requests_that_cannot_be_built(idle: Api, body: Json, says: str) -> None:
    assert says in json.dumps(await call(idle, "POST", "/v3/templates", 400, body))


async def test_a_build_has_to_be_on_something_and_of_a_size(idle: Api) -> None:
    made = await requested(idle)
    path = f"/v2/templates/app/builds/{made['buildID']}"
    for wish in (
        {},
        {"fromTemplate": "a", "fromImage": "b"},
        {"fromTemplate": "a", "steps": [{"type": "RUN"}] * 501},
        {"fromTemplate": "a", "steps": [{"type": "RUN", "args": ["a\0b"]}]},
        {"fromImage": "a\0b"},
    ):
        await call(idle, "POST", path, 400, wish)
    assert (await status(idle, made))["status"] == "waiting"
    await call(idle, "POST", "/v2/templates/app/builds/nonsense", 404, {})
