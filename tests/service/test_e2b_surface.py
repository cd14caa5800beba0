"""What is common to E2B's surface: errors in its form, keys, the raw path, and that it does not meet `/v1`."""

import httpx2
import pytest
from tests.support.control_plane import Api
from tests.support.rows import insert_sandbox, insert_template

from space.model.ids import new_api_key, new_id
from space.model.lifecycle import State


def message(response: httpx2.Response, status: int) -> str:
    """Check that the answer is an error as E2B's clients read it, and return its message."""
    found = response.json()
    assert (response.status_code, found["code"]) == (status, status), response.text
    assert response.headers["should-retry"] in ("true", "false")
    text: str = found["message"]
    assert text
    return text


@pytest.mark.parametrize(("method", "path"), [("GET", "/v2/sandboxes/x/y"), ("PUT", "/templates"), ("GET", "/v3")])
async def test_what_is_not_there_is_an_error_of_the_surface(api: Api, method: str, path: str) -> None:
    response = await api.http.request(method, path)
    message(response, response.status_code)
    assert response.status_code in (404, 405)


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
async def test_a_key_is_needed_and_any_of_two_headers_has_it(api: Api, header: str) -> None:
    bearer = "Bearer " if header == "authorization" else ""
    async with api.anonymous() as http:
        message(await http.delete(f"/sandboxes/{new_id()}"), 401)
        message(await http.delete(f"/sandboxes/{new_id()}", headers={header: bearer + new_api_key()}), 401)
        message(await http.delete(f"/sandboxes/{new_id()}", headers={header: bearer + api.key}), 404)
        assert (await http.get("/health")).status_code == 200


async def test_what_is_gone_cannot_be_killed_again(api: Api) -> None:
    await insert_template(api.plane.db, api.project)
    made = await insert_sandbox(api.plane.db, api.project, state=State.DELETED)
    assert made.id in message(await api.http.delete(f"/sandboxes/{made.id}"), 404)
    for odd in ("abc", f"{made.id}x", "%2e%2e", "a%2Fb", "%ff"):
        assert "not found" in message(await api.http.delete(f"/sandboxes/{odd}"), 404)


async def test_the_surfaces_do_not_meet(api: Api) -> None:
    assert (await api.http.get("/v1/nothing")).headers["content-type"] == "application/problem+json"
    assert (await api.http.get("/healthz")).json() == {"status": "ok"}
