"""Volumes through the api, a worker's routes, and servers in their jails, on a real area; guests are in tests/e2b."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from tests.support import build_cache, control_plane, postgres
from tests.support.control_plane import Api
from tests.support.deployment import eventually
from tests.support.rows import insert_sandbox, insert_template

from space.disk import area
from space.host import process
from space.layout import Layout
from space.model.ids import VolumeId, WorkerId, new_id
from space.model.lifecycle import State
from space.store.db import connected
from space.wire.serving import answer_with_problems, bind_unix, server
from space.worker import volume_routes, volume_server
from space.worker.records import VolumeRecord
from space.worker.volumes import Volumes, end_servers

Json = dict[str, Any]


@pytest.fixture(scope="module")
async def layout() -> AsyncGenerator[Layout]:
    # not in pytest's folder, which only root may pass through
    data = Path(tempfile.mkdtemp(prefix="space-volumes-", dir="/var/tmp"))
    data.chmod(0o711)
    found = Layout(data, f"v{secrets.token_hex(2)[:3]}", 0x7000_0000)
    (found.run_dir / "worker").mkdir(parents=True)
    found.log_dir.mkdir(exist_ok=True)
    found.cache_dir.mkdir()
    for compiled in ("agent", "go-build"):  # by earlier runs
        if (kept := build_cache.ROOT / ".cache" / "build" / compiled).is_dir():
            shutil.copytree(kept, found.cache_dir / compiled)
    await area.prepare(found, disk_gib=1, memory_gib=1)
    yield found
    await end_servers(found)
    await area.release(found)
    shutil.rmtree(found.data_dir)
    shutil.rmtree(found.run_dir)


@pytest.fixture(scope="module")
async def volumes(layout: Layout) -> Volumes:
    made = Volumes(layout, build_cache.ROOT)
    made.open()
    return made


@pytest.fixture(scope="module")
async def api(layout: Layout, volumes: Volumes) -> AsyncGenerator[Api]:
    app = FastAPI()
    answer_with_problems(app)
    volume_routes.add_routes(app, volumes)
    web = server(app, grace_s=0)
    async with contextlib.AsyncExitStack() as stack:
        listening = stack.enter_context(bind_unix(layout.worker_sock, mode=0o600))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        running = group.create_task(web.serve(sockets=[listening]))
        database = await stack.enter_async_context(postgres.started())
        url = await stack.enter_async_context(database.database())
        db = await stack.enter_async_context(connected(url))
        made = await stack.enter_async_context(control_plane.api_over(db, layout.worker_sock))
        (link,) = made.plane.workers.links
        link.id, link.connected = WorkerId("w1"), True
        yield made
        web.should_exit = True
        await running


class Content:
    """A volume and a client of its content."""

    def __init__(self, api: Api, made: Json) -> None:
        self.id, self.name, self.token = made["volumeID"], made["name"], made["token"]
        self._http = api.anonymous({"authorization": f"Bearer {self.token}"})

    async def ask(self, method: str, part: str, path: str, **given: Any) -> httpx2.Response:
        query = {"path": path} | given.pop("query", {})
        return await self._http.request(method, f"/volumecontent/{self.id}/{part}", params=query, **given)


@pytest.fixture
async def content(api: Api) -> AsyncGenerator[Content]:
    answer = await api.http.post("/volumes", json={"name": f"v-{new_id()}"})
    assert answer.status_code == 201, answer.text
    made = Content(api, answer.json())
    yield made
    await api.http.delete(f"/volumes/{made.id}")


async def test_a_volume_from_its_making_to_its_end(api: Api, content: Content) -> None:
    one = {"volumeID": content.id, "name": content.name}
    assert one in (await api.http.get("/volumes")).json()
    assert (await api.http.get(f"/volumes/{content.id}")).json() == {**one, "token": content.token}
    taken = await api.http.post("/volumes", json={"name": content.name})
    assert (taken.status_code, taken.json()["code"]) == (400, 400)
    for bad in ("", "a b", "../x", "x" * 65):
        assert (await api.http.post("/volumes", json={"name": bad})).status_code == 400
    assert (await api.http.delete(f"/volumes/{content.id}")).status_code == 204
    for method in ("GET", "DELETE"):
        assert (await api.http.request(method, f"/volumes/{content.id}")).status_code == 404
    assert (await content.ask("GET", "path", "/")).status_code == 404


async def test_content_needs_that_volumes_token(api: Api, content: Content) -> None:
    other = (await api.http.post("/volumes", json={"name": f"v-{new_id()}"})).json()
    path = f"/volumecontent/{content.id}/path?path=/"
    for shown in ("", "vol_", f"Bearer {other['token']}", f"Bearer {api.key}", "Bearer vol_" + "0" * 64):
        answer = await api.anonymous({"authorization": shown}).get(path)
        assert answer.status_code == 401, shown
        assert isinstance(answer.json()["code"], str)
    assert (await api.http.get(path)).status_code == 401, "a key is not a volume's token"
    assert (await api.http.delete(f"/volumes/{other['volumeID']}")).status_code == 204


async def test_content_is_written_read_listed_changed_and_removed(content: Content) -> None:
    made = await content.ask("POST", "dir", "/a/b", query={"force": "true", "uid": 5, "gid": 6, "mode": 0o700})
    assert made.status_code == 201
    entry = made.json()
    assert {name: entry[name] for name in ("name", "type", "path", "uid", "gid", "mode")} == {
        "name": "b", "type": "directory", "path": "/a/b", "uid": 5, "gid": 6, "mode": 0o700,
    }  # fmt: skip
    assert (await content.ask("POST", "dir", "/a/b")).status_code == 409
    body = os.urandom(3_000_000)
    written = await content.ask("PUT", "file", "/a/b/file", content=body, query={"mode": 0o4755})
    assert (written.status_code, written.json()["size"], written.json()["mode"]) == (201, len(body), 0o4755)
    assert (await content.ask("GET", "file", "/a/b/file")).content == body
    kept = await content.ask("PUT", "file", "/a/b/file", content=b"new")
    assert (kept.json()["size"], kept.json()["mode"]) == (3, 0o4755)
    changed = await content.ask("PATCH", "path", "/a/b/file", json={"uid": 7})
    assert (changed.json()["uid"], changed.json()["mode"]) == (7, 0o4755)
    listed = (await content.ask("GET", "dir", "/", query={"depth": 9})).json()
    assert [each["path"] for each in listed] == ["/a", "/a/b", "/a/b/file"]
    assert [each["path"] for each in (await content.ask("GET", "dir", "/")).json()] == ["/a"]
    for method, part, path, status in (
        ("GET", "file", "/none", 404), ("GET", "file", "/a", 400), ("GET", "dir", "/a/b/file", 404),
        ("PUT", "file", "/none/file", 404), ("PUT", "file", "/a", 400), ("POST", "dir", "/none/dir", 404),
        ("DELETE", "path", "/", 400), ("DELETE", "path", "/none", 404), ("POST", "path", "/a", 404),
        ("GET", "dir", "/a\0", 400), ("GET", "path", "/" + "x" * 300, 400),
    ):  # fmt: skip
        answer = await content.ask(method, part, path)
        assert answer.status_code == status, (method, part, path, answer.text)
        assert isinstance(answer.json()["code"], str)
    assert (await content.ask("DELETE", "path", "/a")).status_code == 204
    assert (await content.ask("GET", "dir", "/")).json() == []


async def test_no_path_leads_out(content: Content, layout: Layout) -> None:
    secret = layout.disk_area / "secret"
    secret.write_text("not yours")
    secret.chmod(0o644)
    assert (await content.ask("POST", "dir", "/dir")).status_code == 201
    for path in (
        "../../secret",
        "/../../secret",
        "/dir/../../../secret",
        f"/{secret}",
        "/proc/self/environ",
        "/volumes",
    ):
        assert (await content.ask("GET", "file", path)).status_code == 404, path
    # whatever gets past the server's care: nothing but the volume is there
    folder = layout.volumes_dir / content.id / "tree"
    (folder / "out").symlink_to("/volume/tmp")
    (folder / "up").symlink_to("../../../secret")
    os.mkfifo(folder / "fifo")
    for name in ("out", "up", "fifo"):
        for method, part in (("GET", "file"), ("GET", "path"), ("PATCH", "path"), ("DELETE", "path")):
            answer = await content.ask(method, part, f"/{name}", json={} if method == "PATCH" else None)
            assert answer.status_code in (400, 404, 500), (name, method, answer.text)
    assert secret.read_text() == "not yours"


async def test_what_is_on_the_host_is_no_ones_but_the_servers(content: Content, layout: Layout) -> None:
    await content.ask("PUT", "file", "/suid", content=b"x", query={"uid": 0, "gid": 0, "mode": 0o6755})
    found = (layout.volumes_dir / content.id / "tree" / "suid").stat()
    uid = (layout.volumes_dir / content.id).stat().st_uid
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (uid, uid, 0o600)
    (ref,) = (
        ref
        for ref in process.uid_processes(range(uid, uid + 1))
        if Path(f"/proc/{ref.pid}/cmdline").read_bytes().startswith(b"/volumes")
    )
    status = Path(f"/proc/{ref.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert Path(f"/proc/{ref.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


async def test_a_volume_holds_no_more_than_it_may(api: Api, volumes: Volumes, content: Content) -> None:
    small = VolumeId(new_id())
    await volumes.create(small, 1024**2)
    async with volumes.serving(small) as running:
        transport = httpx2.AsyncHTTPTransport(uds=str(running.content_socket))
        async with httpx2.AsyncClient(transport=transport, base_url="http://volume") as http:
            assert (await http.put("/file?path=/a", content=bytes(900_000))).status_code == 201
            full = await http.put("/file?path=/b", content=bytes(900_000))
            assert (full.status_code, full.json()["code"]) == (507, "storage_full")
            assert [one["name"] for one in (await http.get("/dir?path=/")).json()] == ["a"], "whole or not at all"
            assert (await http.request("DELETE", "/path?path=/a")).status_code == 204
            assert (await http.put("/file?path=/b", content=bytes(900_000))).status_code == 201
    await volumes.delete(small)


async def test_a_server_that_is_killed_is_started_again(content: Content, layout: Layout) -> None:
    assert (await content.ask("PUT", "file", "/kept", content=b"kept")).status_code == 201
    uid = (layout.volumes_dir / content.id).stat().st_uid
    for ref in process.uid_processes(range(uid, uid + 1)):
        os.kill(ref.pid, signal.SIGKILL)

    async def back() -> bool:
        answer = await content.ask("GET", "file", "/kept")
        return answer.content == b"kept"

    await eventually(back, within_s=30, what="the volume is served again")


async def test_one_that_a_sandbox_has_is_not_deleted(api: Api, content: Content) -> None:
    await insert_template(api.plane.db, api.project)
    body = {"templateID": "base", "volumeMounts": [{"name": content.name, "path": "/data"}]}
    for mounts, said in (
        ([{"name": "none", "path": "/data"}], (404, "none")), ([{"name": content.name, "path": "data"}], (400, "path")),
        ([{"name": content.name, "path": "/proc/x"}], (400, "/proc")),
        ([{"name": content.name, "path": "/a"}, {"name": content.name, "path": "/a"}], (400, "one path")),
    ):  # fmt: skip
        answer = await api.http.post("/v2/sandboxes", json=body | {"volumeMounts": mounts})
        assert answer.status_code == said[0], answer.text
        assert said[1] in answer.json()["message"]
    made = await insert_sandbox(api.plane.db, api.project, state=State.SUSPENDED)
    mount = [{"volume": content.id, "name": content.name, "path": "/data"}]
    await api.plane.db.execute("UPDATE sandboxes SET volumes = $2 WHERE id = $1", made.id, mount)
    shown = (await api.http.get(f"/sandboxes/{made.id}")).json()
    assert shown["volumeMounts"] == [{"name": content.name, "path": "/data"}]
    refused = await api.http.delete(f"/volumes/{content.id}")
    assert refused.status_code == 409
    assert made.id in refused.json()["message"]
    await api.plane.db.execute("UPDATE sandboxes SET state = 'deleted' WHERE id = $1", made.id)
    assert (await api.http.delete(f"/volumes/{content.id}")).status_code == 204


async def test_a_guest_that_talks_nonsense_ends_its_own_connection(content: Content, layout: Layout) -> None:
    assert (await content.ask("GET", "dir", "/")).status_code == 200
    record = VolumeRecord.model_validate_json((layout.volume_records_dir / f"{content.id}.json").read_bytes())
    ref = process.uid_processes(range(layout.uid_base + record.uid_number, layout.uid_base + record.uid_number + 1))[0]
    held = process.watch(ref)
    assert held is not None
    running = volume_server.VolumeServer(layout, record, held)
    for nonsense in (b"\xff" * 4096, b"\0" * 4096, (2**20 + 1).to_bytes(4, "little") + bytes(40)):
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                await running.attach("vm", theirs)
            ours.settimeout(30)
            ours.sendall(nonsense)
            ours.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while ours.recv(65536):
                    pass
    held.release()
    assert (await content.ask("GET", "dir", "/")).status_code == 200
