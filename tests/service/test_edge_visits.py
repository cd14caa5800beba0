"""The edge's question about requests for sandboxes' ports: who may, to where, and what the guest does not see."""

import base64
import hashlib
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from tests.support.control_plane import Api, api_over
from tests.support.postgres import Server
from tests.support.rows import insert_sandbox, insert_template

from space.control import keys, waiting
from space.control.traffic import traffic_token
from space.model.ids import new_id
from space.model.lifecycle import Event, State
from space.model.sandbox import Deadlines, Desired, Sandbox
from space.store import projects, sandboxes, wishes
from space.store.db import Database, connected

ASLEEP = Deadlines(auto_resume=False)
NOT_FOUND, PORT_CLOSED = "The sandbox was not found", "The sandbox is running but port is not open"
TRANSITIONING = "The sandbox is still transitioning. Try again in a moment."


@pytest.fixture(scope="module")
async def world(server: Server, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """An api with a template, that waits only a moment for a worker. Each test has sandboxes of its own in it."""
    socket = tmp_path_factory.mktemp("visits") / "no-worker.sock"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "WAIT_UNAVAILABLE_S", 0.05)
        async with server.database() as url, connected(url) as db, api_over(db, socket) as api:
            await insert_template(db, api.project)
            yield api


async def insert(api: Api, state: State = State.RUNNING, **more: Any) -> Sandbox:
    fields: dict[str, Any] = {"agent_token": secrets.token_hex(32), "public_ports": True} | more
    return await insert_sandbox(api.plane.db, api.project, state=state, worker="away", **fields)


async def ask(api: Api, path: str = "/", method: str = "GET", **headers: str) -> httpx2.Response:
    """Ask as the edge does; underscores in names stand for hyphens."""
    sent = {"host": "127.0.0.1:8080"} | {name.replace("_", "-"): value for name, value in headers.items()}
    async with api.anonymous() as http:
        return await http.request(method, f"/internal/authz{path}", headers=sent)


async def verdict(api: Api, path: str = "/", method: str = "GET", **headers: str) -> dict[str, str]:
    """Return what an answer that lets a request pass says."""
    answer = await ask(api, path, method, **headers)
    assert answer.status_code == 200, answer.text
    return {name.removeprefix("x-space-"): text for name, text in answer.headers.items() if name.startswith("x-")}


async def refused(api: Api, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str]:
    """Return status and message of a refusal in E2B's form; the former as the client gets it."""
    answer = await ask(api, path, method, **headers)
    body = answer.json()
    assert answer.status_code == {502: 452, 503: 453}.get(body["code"], body["code"])
    assert "x-space-to" not in answer.headers
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    return body["code"], body["message"]


async def test_headers_lead_to_the_port_they_say(world: Api) -> None:
    made = await insert(world)
    common = {"to": "node", "sandbox": made.id, "x-envoy-auth-headers-to-remove": "cookie"}
    assert await verdict(world, "/health", e2b_sandbox_id=made.id) == common | {
        "port": "49983", "origin": "strict", "host": "localhost:49983",
    }  # fmt: skip
    assert await verdict(world, "/any%2Fthing", "BREW", e2b_sandbox_id=made.id, e2b_sandbox_port="8000") == common | {
        "port": "8000", "origin": "shared", "host": "localhost:8000",
    }  # fmt: skip


async def test_a_name_leads_there_too(world: Api) -> None:
    made = await insert(world)
    for port in ("8000", "49983"):
        assert await verdict(world, "/internal/authz", host=f"{port}-{made.id}.any.test:8080") == {
            "to": "node", "sandbox": made.id, "port": port, "origin": "own",
        }  # fmt: skip


async def test_below_a_domain_of_ours(db: Database, tmp_path: Path) -> None:
    async with api_over(db, tmp_path / "no-worker.sock", "boxes.test:8443") as api:
        await insert_template(api.plane.db, api.project)
        made = await insert(api)
        assert (await verdict(api, host=f"8000-{made.id}.boxes.test"))["origin"] == "own"
        assert await verdict(api, host=f"8000-{made.id}.other.test") == {"to": "api"}
        assert await verdict(api, host="api.boxes.test") == {"to": "api"}
        shared = await verdict(api, host="sandbox.boxes.test", e2b_sandbox_id=made.id, e2b_sandbox_port="8000")
        assert shared["host"] == f"8000-{made.id}.boxes.test:8443"
        assert await refused(api, host="8000-gone.boxes.test") == (502, NOT_FOUND)
        answer = await api.http.get(f"/sandboxes/{made.id}")
        assert answer.status_code == 200


async def test_the_host_that_its_owner_wants(world: Api) -> None:
    made = await insert(world, mask_host="localhost:${PORT}")
    assert (await verdict(world, host=f"8000-{made.id}.x"))["host"] == "localhost:8000"
    assert (await verdict(world, e2b_sandbox_id=made.id, e2b_sandbox_port="81"))["host"] == "localhost:81"
    assert "host" not in await verdict(world, host=f"49983-{made.id}.x"), "the agent's is no server of the user's"


async def test_ports_whose_servers_speak_tls(world: Api) -> None:
    made = await insert(world, e2b={"network": {"httpsPorts": [8443]}})
    assert (await verdict(world, host=f"8443-{made.id}.x"))["tls"] == "1"
    assert "tls" not in await verdict(world, host=f"8000-{made.id}.x")


@pytest.mark.parametrize("ident", ["nothing", "../x", "a" * 20, "A" * 20, "", "\xe4" * 20])
async def test_what_is_no_sandbox_is_not_found(world: Api, ident: str) -> None:
    async with world.anonymous() as http:
        answer = await http.get("/internal/authz/", headers=[(b"e2b-sandbox-id", ident.encode("latin-1"))])
    if ident:
        assert (answer.status_code, answer.json()["message"]) == (452, NOT_FOUND)
    else:
        assert answer.headers["x-space-to"] == "api"


@pytest.mark.parametrize(
    ("state", "status", "message"),
    [
        (State.CREATING, 409, TRANSITIONING), (State.PAUSED, 409, TRANSITIONING),
        (State.RESTORING, 409, TRANSITIONING),
        (State.SUSPENDING, 502, NOT_FOUND), (State.SUSPENDED, 502, NOT_FOUND), (State.FAILED, 502, NOT_FOUND),
        (State.DELETING, 502, NOT_FOUND), (State.DELETED, 502, NOT_FOUND),
    ],
)  # fmt: skip
@pytest.mark.parametrize("port", ["8000", "49983"])
async def test_in_other_states(world: Api, state: State, status: int, message: str, port: str) -> None:
    made = await insert(world, state, deadlines=ASLEEP)
    headers = {"e2b_sandbox_id": made.id, "e2b_sandbox_port": port, "x_access_token": made.spec.agent_token}
    assert await refused(world, **headers) == (status, message)
    before = await sandboxes.get(world.plane.db, made.id)
    await world.plane.activity.flush(world.plane.db)
    assert await sandboxes.get(world.plane.db, made.id) == before, "and it counts as no use"


async def test_one_that_was_paused_on_request_is_not_there(world: Api) -> None:
    made = await insert(world, State.PAUSED, deadlines=ASLEEP)
    async with world.plane.db.transaction() as tx:
        await wishes.wish(tx, made.id, Desired.PAUSED)
    assert await refused(world, e2b_sandbox_id=made.id) == (502, NOT_FOUND)


async def test_one_that_is_to_run_again_once_it_sleeps_is_on_its_way(world: Api) -> None:
    made = await insert(world, State.SUSPENDING, deadlines=ASLEEP)
    async with world.plane.db.transaction() as tx:
        await wishes.wish(tx, made.id, Desired.RUNNING)
    assert await refused(world, e2b_sandbox_id=made.id) == (409, TRANSITIONING)


async def test_one_that_is_to_be_deleted_is_gone(world: Api) -> None:
    made = await insert(world)
    await wishes.ask_delete(world.plane.db, made.id)
    assert await refused(world, e2b_sandbox_id=made.id) == (502, NOT_FOUND)


async def test_what_has_just_changed_is_true_at_once(world: Api) -> None:
    """Nobody has told this process; a client that was just told that it runs must not hear otherwise."""
    made = await insert(world, State.SUSPENDED, deadlines=ASLEEP)
    assert await refused(world, e2b_sandbox_id=made.id) == (502, NOT_FOUND)
    row: Sandbox = made
    for event in (Event.RESTORE_BEGUN, Event.RESTORED):
        async with world.plane.db.transaction() as tx:
            row = await sandboxes.move(tx, row, event)
    assert (await verdict(world, e2b_sandbox_id=made.id))["to"] == "node"


@pytest.mark.parametrize("port", ["49981", "49982"])
@pytest.mark.parametrize("named", ["host", "header"])
async def test_the_agents_internal_ports_are_closed(world: Api, named: str, port: str) -> None:
    made = await insert(world)
    headers = (
        {"host": f"{port}-{made.id}.x"} if named == "host" else {"e2b_sandbox_id": made.id, "e2b_sandbox_port": port}
    )
    assert await refused(world, "/init", "POST", **headers, x_access_token=made.spec.agent_token) == (502, PORT_CLOSED)


async def test_a_port_that_is_none_is_a_bad_request(world: Api) -> None:
    made = await insert(world)
    for port in ("0", "08000", "65536", "+1", "x"):
        assert await refused(world, e2b_sandbox_id=made.id, e2b_sandbox_port=port) == (400, "Invalid sandbox port")


class TestPrivatePorts:
    """Ports that are not open to everybody."""

    async def test_the_traffic_token_opens_them(self, world: Api) -> None:
        made, other = (
            await insert(world, public_ports=False),
            await insert(world, public_ports=False, agent_token="6f" * 32),
        )
        headers = {"e2b_sandbox_id": made.id, "e2b_sandbox_port": "8000"}
        secured = "Sandbox is secured with traffic access token."
        missing = 403, f"{secured} Token header 'e2b-traffic-access-token' is missing"
        invalid = 403, f"{secured} Provided token in header 'e2b-traffic-access-token' is invalid"
        assert await refused(world, **headers) == missing
        assert await refused(world, **headers, x_access_token=made.spec.agent_token) == missing
        for wrong in (
            "x",
            made.spec.agent_token,
            traffic_token(other.spec.agent_token),
            traffic_token(made.spec.agent_token)[:-1],
            traffic_token(""),
        ):
            assert await refused(world, **headers, e2b_traffic_access_token=wrong) == invalid
        assert (await verdict(world, **headers, e2b_traffic_access_token=traffic_token(made.spec.agent_token)))[
            "origin"
        ] == "shared"
        by_name = await verdict(
            world, host=f"8000-{made.id}.x", e2b_traffic_access_token=traffic_token(made.spec.agent_token)
        )
        assert by_name["origin"] == "own"

    async def test_so_does_a_key_of_the_project_which_then_travels_no_further(self, world: Api) -> None:
        made = await insert(world, public_ports=False)
        headers = {"host": f"8000-{made.id}.x"}
        _, others = await keys.create(world.plane.db, await projects.ensure(world.plane.db, "other"), "other")
        for wrong in (others, "e2b_" + "0" * 40, "mine"):
            assert (await refused(world, **headers, x_api_key=wrong))[0] == 403
        for shown in ({"x_api_key": world.key}, {"authorization": f"Bearer {world.key}"}):
            said = await verdict(world, **headers, **shown)
            assert said["origin"] == "strict", "a redirect must not lead the key elsewhere"
            assert said["x-envoy-auth-headers-to-remove"] == next(iter(shown)).replace("_", "-")

    async def test_our_own_api_tells_the_token(self, world: Api) -> None:
        made = await insert(world, public_ports=False)
        shown = (await world.http.get(f"/v1/sandboxes/{made.id}")).json()
        assert (shown["public_ports"], shown["traffic_token"]) == (False, traffic_token(made.spec.agent_token))
        assert made.spec.agent_token not in str(shown)

    async def test_the_agents_port_is_none_of_them(self, world: Api) -> None:
        made = await insert(world, public_ports=False)
        assert (await verdict(world, "/health", e2b_sandbox_id=made.id))["port"] == "49983"

    async def test_whoever_may_not_enter_wakes_nobody(self, world: Api) -> None:
        made = await insert(world, State.SUSPENDED, public_ports=False)
        assert (await refused(world, e2b_sandbox_id=made.id, e2b_sandbox_port="8000"))[0] == 403
        row = await sandboxes.get(world.plane.db, made.id)
        assert row is not None
        assert row.spec.desired is Desired.SUSPENDED


async def test_tokens_and_keys_are_not_for_the_users_servers(world: Api) -> None:
    made = await insert(world)
    here = {"host": f"8000-{made.id}.x"}
    remove = "x-envoy-auth-headers-to-remove"
    assert remove not in await verdict(
        world, **here, x_api_key="mine", authorization="Bearer eyJ.x", x_access_token="eyJ.x", cookie="a=b"
    )
    leaky = {"x_api_key": world.key, "authorization": f"Bearer {world.key}", "x_access_token": made.spec.agent_token}
    assert (await verdict(world, **here, **leaky))[remove] == "authorization,x-access-token,x-api-key"
    assert (await verdict(world, host=f"49983-{made.id}.x", **leaky))[remove] == "x-api-key"
    async with world.anonymous() as http:
        twice = [(b"host", f"8000-{made.id}.x".encode()), (b"x-api-key", world.key.encode()), (b"x-api-key", b"mine")]
        assert (await http.get("/internal/authz/", headers=twice)).headers[remove] == "x-api-key"


class TestWaking:
    """Sandboxes that sleep and may be woken; their worker is away, so waking is told as unavailable."""

    async def woken(self, api: Api, made: Sandbox) -> bool:
        row = await sandboxes.get(api.plane.db, made.id)
        assert row is not None
        return row.spec.desired is Desired.RUNNING

    @pytest.mark.parametrize("state", [State.SUSPENDED, State.SUSPENDING, State.RESTORING])
    async def test_a_request_for_a_port_wakes(self, world: Api, state: State) -> None:
        made = await insert(world, state)
        assert (await refused(world, host=f"8000-{made.id}.x"))[0] == 503
        assert await self.woken(world, made)

    async def test_at_the_agents_port_the_token_does(self, world: Api) -> None:
        made = await insert(world, State.SUSPENDED)
        here = {"e2b_sandbox_id": made.id}
        for wrong in (
            {},
            {"x_access_token": "6f" * 32},
            {"x_access_token": traffic_token(made.spec.agent_token)},
            {"x_api_key": world.key},
        ):
            assert await refused(world, "/health", **here, **wrong) == (502, NOT_FOUND)
            assert await refused(world, "/files?path=a&signature=v1_x", **here, **wrong) == (502, NOT_FOUND)
            assert not await self.woken(world, made)
        assert (await refused(world, "/health", **here, x_access_token=made.spec.agent_token))[0] == 503
        assert await self.woken(world, made)

    async def test_so_does_a_signature_that_is_good(self, world: Api) -> None:
        made = await insert(world, State.SUSPENDED)
        assert await refused(world, _url("/a", "read", made.spec.agent_token, expiry=1), e2b_sandbox_id=made.id) == (
            502,
            NOT_FOUND,
        )
        assert await refused(world, _url("/a", "read", made.spec.agent_token, expiry=1)) == (502, NOT_FOUND)
        assert not await self.woken(world, made)
        assert (await refused(world, _url("/a", "read", made.spec.agent_token), e2b_sandbox_id=made.id))[0] == 503
        assert await self.woken(world, made)
        other = await insert(world, State.SUSPENDED)
        assert (await refused(world, _url("/a", "read", other.spec.agent_token, expiry=int(time.time()) + 60)))[
            0
        ] == 503
        assert await self.woken(world, other)


def _url(path: str, operation: str, token: str, expiry: int | None = None, user: str = "") -> str:
    text = f"{path}:{operation}:{user}:{token}" + (f":{expiry}" if expiry is not None else "")
    signature = "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    fields: dict[str, object] = {"path": path, "signature": signature}
    fields |= {"signature_expiration": expiry} if expiry is not None else {}
    fields |= {"username": user} if user else {}
    return "/files?" + urlencode(fields)


class TestSignedUrls:
    """Signed URLs that name no sandbox."""

    async def test_one_leads_to_whose_token_signed_it(self, world: Api) -> None:
        made, other = await insert(world), await insert(world)
        expected = {
            "to": "node", "port": "49983", "origin": "strict", "host": "localhost:49983",
            "x-envoy-auth-headers-to-remove": "cookie",
        }  # fmt: skip
        for owner in (made, other):
            for method, operation in (("GET", "read"), ("HEAD", "read"), ("POST", "write")):
                url = _url("/tmp/a b&c", operation, owner.spec.agent_token, 1, "root")
                assert await verdict(world, url, method) == expected | {"sandbox": owner.id}

    async def test_a_browser_may_ask_before_it_uploads(self, world: Api) -> None:
        made = await insert(world)
        asked = await verdict(
            world, _url("/a", "write", made.spec.agent_token), "OPTIONS", access_control_request_method="POST"
        )
        assert asked["sandbox"] == made.id

    async def test_one_of_a_sandbox_that_is_not_there(self, world: Api) -> None:
        for state in (State.FAILED, State.DELETED):
            made = await insert(world, state)
            assert await refused(world, _url("/a", "read", made.spec.agent_token)) == (401, "invalid signature")
        assert await refused(world, _url("/a", "read", "")) == (401, "invalid signature")

    async def test_a_new_sandboxs_is_known_at_once(self, world: Api) -> None:
        token = secrets.token_hex(32)
        assert (await refused(world, _url("/a", "read", token)))[0] == 401
        made = await insert(world, agent_token=token)
        assert (await verdict(world, _url("/a", "read", made.spec.agent_token)))["sandbox"] == made.id

    async def test_wrong_ones_are_slowed_down_for_each_address(self, world: Api) -> None:
        made = await insert(world)
        guess = _url("/a", "read", "guess")
        for _ in range(30):
            assert (await refused(world, guess, x_forwarded_for="192.0.2.7"))[0] == 401
        assert (await refused(world, guess, x_forwarded_for="192.0.2.7"))[0] == 429
        assert (await refused(world, _url("/a", "read", made.spec.agent_token), x_forwarded_for="192.0.2.7"))[0] == 429
        assert (await verdict(world, _url("/a", "read", made.spec.agent_token), x_forwarded_for="192.0.2.8"))[
            "sandbox"
        ] == made.id

    @pytest.mark.parametrize(
        "path", ["/files?path=a", "/files?path=a&signature=", "/filesx?signature=v1_a", "/files/x?signature=v1_a"]
    )
    async def test_nothing_else_is_one(self, world: Api, path: str) -> None:
        assert await verdict(world, path) == {"to": "api"}


async def test_a_browser_that_navigates_gets_a_page(world: Api) -> None:
    answer = await ask(world, host=f"8000-{new_id()}.x", accept="text/html,application/xhtml+xml;q=0.9")
    assert (answer.status_code, answer.headers["content-type"]) == (452, "text/html; charset=utf-8")
    assert "<h1>The sandbox was not found</h1>" in answer.text
    answer = await ask(world, e2b_sandbox_id="<script>", accept="text/html")
    assert "<script>" not in answer.text


async def test_a_visit_counts_as_use(world: Api) -> None:
    made = await insert(world)
    await verdict(world, host=f"8000-{made.id}.x")
    await world.plane.activity.flush(world.plane.db)
    row = await sandboxes.get(world.plane.db, made.id)
    assert row is not None
    assert row.last_active_at > made.last_active_at


def test_a_traffic_token_is_its_sandboxs_alone() -> None:
    assert len({traffic_token(token) for token in ("a", "b", "")} | {"a", "b", ""}) == 6
    assert traffic_token("a") == traffic_token("a")
