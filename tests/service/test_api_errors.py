"""What a client gets for requests that cannot be served: always problem+json that says what to do."""

import json
from collections.abc import AsyncIterator

import httpx2
import pytest
from tests.support.control_plane import Api
from tests.support.rows import insert_template

from space.model.ids import new_api_key, new_id
from space.store.db import Database
from space.wire import request_body


def problem(response: httpx2.Response, status: int, code: str) -> str:
    """Check that the answer is this problem, and return its detail."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    found = response.json()
    assert (response.status_code, found["status"], found["code"]) == (status, status, code), response.text
    assert set(found) == {"type", "title", "status", "code", "detail"}
    detail: str = found["detail"]
    assert detail
    return detail


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": ""},
        {"x-api-key": "wrong"},
        {"x-api-key": "e2b_" + "0" * 40},
        {"x-api-key": new_api_key().upper()},
        {"authorization": f"Basic {new_api_key()}"},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {new_api_key()} x"},
        {"x-api-key": "e2b_é".encode().decode("latin-1")},
    ],
)
@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/nothing", "/metrics", "/v1/keys"])
async def test_without_a_valid_key_there_is_nothing(refusing_api: Api, headers: dict[str, str], path: str) -> None:
    async with refusing_api.anonymous() as http:
        problem(
            await http.get(path, headers={k.encode(): v.encode("latin-1") for k, v in headers.items()}),
            401,
            "unauthorized",
        )


async def test_both_ways_to_show_a_key_work(refusing_api: Api) -> None:
    async with refusing_api.anonymous() as http:
        for headers in ({"X-API-KEY": refusing_api.key}, {"Authorization": f"Bearer {refusing_api.key}"}):
            assert (await http.get("/v1/sandboxes", headers=headers)).status_code == 200


async def test_health_and_the_document_need_no_key(refusing_api: Api) -> None:
    async with refusing_api.anonymous() as http:
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        assert (await http.get("/openapi.json")).status_code == 200
        answer = await http.get("/readyz")
    assert answer.status_code == 503, "no worker answers"
    assert answer.json() == {"ready": False, "database": True, "workers": 1, "workers_connected": 0}


@pytest.mark.parametrize(
    ("content", "status", "code", "says"),
    [
        (b"{", 400, "bad_request", "not valid JSON"),
        (b"\xff\xfe", 400, "bad_request", "not valid JSON"),
        (b'{"env": {"A": "\\ud800"}}', 400, "bad_request", "not valid JSON"),
        (b"[" * 100_000, 400, "bad_request", "not valid JSON"),
        (b'{"env":' * 10_000 + b"1" + b"}" * 10_000, 400, "bad_request", "not valid JSON"),
        (b"[]", 422, "invalid_argument", "The body"),
        (b"null", 422, "invalid_argument", "The body"),
        (b'{"cpus": 2}', 422, "invalid_argument", "cpus: there is no such field; the fields are template, vcpus"),
        (b'{"vcpus": 0}', 422, "invalid_argument", "vcpus"),
        (b'{"vcpus": "many"}', 422, "invalid_argument", "vcpus"),
        (b'{"vcpus": 1e400}', 422, "invalid_argument", "vcpus"),
        (b'{"memory_mib": 1}', 422, "invalid_argument", "memory_mib"),
        (b'{"memory_mib": 99999999999999999999999}', 422, "invalid_argument", "memory_mib"),
        (b'{"env": {"A": 1}}', 422, "invalid_argument", "env.A"),
        (b'{"env": {"A\\u0000": "x"}}', 422, "invalid_argument", "env"),
        (b'{"labels": {"a:b": "x"}}', 422, "invalid_argument", "labels"),
        (b'{"template": "no\\u0000pe"}', 404, "template_not_found", "no template"),
        (b'{"template": "nope"}', 404, "template_not_found", "space template build"),
        (b'{"template": "../../etc/passwd"}', 404, "template_not_found", "no template"),
    ],
)
async def test_a_bad_body_is_refused_with_its_field(
    refusing_api: Api, content: bytes, status: int, code: str, says: str
) -> None:
    assert says in problem(await refusing_api.http.post("/v1/sandboxes", content=content), status, code)


async def test_a_body_is_json_whatever_its_type_says_and_a_repeated_field_counts_last(refusing_api: Api) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    content = b'{"template": "first", "template": "second"}'
    answer = await refusing_api.http.post("/v1/sandboxes", content=content, headers=headers)
    assert "'second'" in problem(answer, 404, "template_not_found")


async def test_a_body_over_the_limit_is_dropped_and_refused(refusing_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    async def chunks(count: int) -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(count):
            sent += 65536
            yield b" " * 65536

    problem(await refusing_api.http.post("/v1/sandboxes", content=chunks(100)), 413, "body_too_large")
    assert sent == 100 * 65536, "read to its end, so that the client gets to read the answer"
    sent = 0
    monkeypatch.setattr(request_body, "DRAIN_BYTES", 2 * request_body.MAX_BYTES)
    problem(await refusing_api.http.post("/v1/sandboxes", content=chunks(1000)), 413, "body_too_large")
    assert sent < 100 * 65536, "but not for ever"


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=x", "limit=100000", "state=asleep", "label=a", "label=:b", "label=a%00:b", "cursor=x",
        "cursor=", "cursor=%00", "cursor=" + "a" * 5000,
    ],
)  # fmt: skip
async def test_a_bad_query_is_refused_with_its_field(refusing_api: Api, query: str) -> None:
    detail = problem(await refusing_api.http.get(f"/v1/sandboxes?{query}"), 422, "invalid_argument")
    assert detail.startswith(f"{query.split('=', maxsplit=1)[0]}: ")
    assert "should" not in detail


async def test_a_cursor_that_never_was_is_not_found(refusing_api: Api) -> None:
    assert "cursor" in problem(await refusing_api.http.get(f"/v1/sandboxes?cursor={new_id()}"), 404, "not_found")


@pytest.mark.parametrize("ident", ["x", "A" * 20, "%00", "%2e%2e", "..%2f..", "a" * 19 + "%0a", "%ff%fe", new_id()])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/sandboxes/{}"),
        ("DELETE", "/v1/sandboxes/{}"),
        ("GET", "/v1/sandboxes/{}/events"),
        ("GET", "/v1/operations/{}"),
        ("DELETE", "/v1/keys/{}"),
    ],
)
async def test_an_unknown_id_is_not_found(refusing_api: Api, method: str, path: str, ident: str) -> None:
    problem(await refusing_api.http.request(method, path.format(ident)), 404, "not_found")


@pytest.mark.parametrize("name", ["nope", "%00", "sha256:" + "0" * 64, "a%20b", "x" * 300])
async def test_an_unknown_template_is_not_found(refusing_api: Api, name: str) -> None:
    problem(await refusing_api.http.get(f"/v1/templates/{name}"), 404, "template_not_found")
    problem(await refusing_api.http.delete(f"/v1/templates/{name}"), 404, "template_not_found")


async def test_unknown_routes_and_methods(refusing_api: Api) -> None:
    problem(await refusing_api.http.get("/nope"), 404, "not_found")
    problem(await refusing_api.http.get("/v1/sandboxes/"), 404, "not_found")
    problem(await refusing_api.http.get("/internal/anything"), 404, "not_found")
    answer = await refusing_api.http.put("/v1/keys")
    problem(answer, 405, "method_not_allowed")
    assert "GET" in answer.headers["allow"]


async def test_a_sandboxs_own_routes_do_not_come_here(refusing_api: Api) -> None:
    for path in (f"/v1/sandboxes/{new_id()}/commands", f"/v1/sandboxes/{new_id()}/files/list"):
        problem(await refusing_api.http.post(path), 421, "misdirected")


@pytest.mark.parametrize("key", [b"", b"x" * 256, b"tab\there", b"\xe9"])
async def test_a_bad_idempotency_key_is_refused(refusing_api: Api, key: bytes) -> None:
    answer = await refusing_api.http.post("/v1/sandboxes", headers={b"idempotency-key": key})
    assert "Idempotency-Key" in problem(answer, 422, "invalid_argument")


async def test_an_error_of_ours_shows_nothing_of_its_inside(
    api: Api, db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    await db.execute("ALTER TABLE api_keys RENAME COLUMN label TO other")  # what a bug of ours would look like
    async with api.anonymous({"x-api-key": api.key}) as http:
        answer = await http.get("/v1/keys")
    detail = problem(answer, 500, "internal")
    assert "column" not in detail
    request_id = answer.headers["x-request-id"]
    logged = capsys.readouterr()
    assert request_id in logged.out + logged.err


async def test_a_dead_database_is_a_temporary_error(api: Api, db: Database) -> None:
    await insert_template(db, api.project)
    assert (await api.http.get("/v1/sandboxes")).status_code == 200
    db._pool.terminate()
    answer = await api.http.get("/v1/sandboxes")
    problem(answer, 503, "unavailable")
    assert answer.headers["retry-after"] == "1"
    assert (await api.http.get("/readyz")).json()["database"] is False


async def test_every_answer_carries_a_request_id(refusing_api: Api) -> None:
    ids = {(await refusing_api.http.get(path)).headers["x-request-id"] for path in ("/healthz", "/nope", "/v1/keys")}
    assert len(ids) == 3


async def test_problems_are_json_with_a_type(refusing_api: Api) -> None:
    answer = await refusing_api.http.get("/nope")
    assert json.loads(answer.content)["type"] == "about:blank"
