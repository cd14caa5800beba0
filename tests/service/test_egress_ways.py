"""A sandbox's own secret, the password of its upstream proxy: whence it comes, where it goes, and where it is not."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request
from tests.service.test_egress_secrets import NEW_KEY, dump
from tests.support import control_plane, worker_socket
from tests.support.control_plane import Api
from tests.support.rows import insert_sandbox, insert_template

from space.control import egress, secrets, waiting
from space.control.vault import Vault
from space.e2b.models import NewSandbox
from space.e2b.sandboxes import _idempotency_key
from space.model.ids import SandboxId, WorkerId
from space.model.lifecycle import State
from space.model.policy_upstream import OWN_PASSWORD
from space.store.db import Database

CANARY = "canary-7d20aa31"
PROXY = {"address": "proxy.test:1080", "username": "team", "password": CANARY, "tls": {"enabled": True}}
SHOWN = {"address": "proxy.test:1080", "username": "team", "tls": {"enabled": True}}


@pytest.fixture
async def api(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """The api with a worker that takes policies, and a template. Creates wait only a moment."""
    monkeypatch.setattr(waiting, "WAIT_UNAVAILABLE_S", 0.05)
    async with (
        worker_socket.listening(tmp_path / "worker.sock"),
        control_plane.api_over(db, tmp_path / "worker.sock") as made,
    ):
        made.plane.workers.links[0].id = WorkerId("w1")
        await insert_template(db, made.project)
        yield made


async def proxied(api: Api, **network: Any) -> SandboxId:
    """Return a running sandbox whose network was set by a client of E2B."""
    made = await insert_sandbox(api.plane.db, api.project, state=State.RUNNING, worker="w1")
    body = {"egressProxy": PROXY, **network}
    assert (await api.http.put(f"/sandboxes/{made.id}/network", json=body)).status_code == 204
    return made.id


async def password_of(api: Api, sandbox: SandboxId) -> str | None:
    """Return the password that the sandbox's worker is told."""
    value = (await egress.orders(api.plane, sandbox)).secrets.values.get(OWN_PASSWORD)
    return None if value is None else value.value.get_secret_value()


async def test_a_proxys_password_goes_to_the_worker_and_is_nowhere_else(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox = await proxied(api, dnsServers=["1.1.1.1"])
    assert await password_of(api, sandbox) == CANARY
    shown = await api.http.get(f"/sandboxes/{sandbox}")
    assert shown.json()["network"] == {"egressProxy": SHOWN, "dnsServers": ["1.1.1.1"]}
    policy = await api.http.get(f"/v1/sandboxes/{sandbox}/policy")
    assert policy.json()["policy"]["upstream_proxy"]["password"] == f"${{secrets.{OWN_PASSWORD}}}"
    assert policy.json()["policy"]["dns_servers"] == ["1.1.1.1"]
    wrong = [
        await api.http.put(f"/sandboxes/{sandbox}/network", json={"egressProxy": PROXY | more})
        for more in ({"address": "x"}, {"username": None}, {"password": CANARY * 99}, {"password": [CANARY]})
    ]
    assert {answer.status_code for answer in wrong} == {400}
    created = await api.http.post("/v2/sandboxes", json={"templateID": "base", "network": {"egressProxy": PROXY}})
    written = capsys.readouterr()
    for text in (shown.text, policy.text, *(one.text for one in wrong), created.text, await dump(api.plane.db),
                 written.out + written.err):  # fmt: skip
        assert CANARY not in text
        assert CANARY.encode().hex() not in text


async def test_a_create_brings_its_password_and_a_repetition_is_the_same_request(api: Api) -> None:
    body = {"templateID": "base", "network": {"egressProxy": PROXY}}
    await api.http.post("/v2/sandboxes", json=body)
    row = await api.plane.db.fetchrow("SELECT id FROM sandboxes ORDER BY created_at DESC LIMIT 1")
    assert row is not None
    assert await password_of(api, SandboxId(row["id"])) == CANARY
    request = Request({"type": "http", "headers": [(b"idempotency-key", b"k-1")]})
    other = {"templateID": "base", "network": {"egressProxy": PROXY | {"password": "another"}}}
    first, again, another = (
        _idempotency_key(api.plane, request, NewSandbox.model_validate(one)) for one in (body, body, other)
    )
    assert first == again != another


async def test_a_new_configuration_replaces_the_password_and_a_policy_leaves_it(api: Api) -> None:
    sandbox = await proxied(api)
    policy = (await api.http.get(f"/v1/sandboxes/{sandbox}/policy")).json()["policy"]
    narrower = policy | {"default": "deny", "rules": []}
    assert (await api.http.put(f"/v1/sandboxes/{sandbox}/policy", json=narrower)).status_code == 200
    assert await password_of(api, sandbox) == CANARY, "a policy can be read and written back"
    await api.http.put(f"/sandboxes/{sandbox}/network", json={"egressProxy": PROXY | {"password": "second"}})
    assert await password_of(api, sandbox) == "second"
    await api.http.put(f"/sandboxes/{sandbox}/network", json={})
    assert (await egress.orders(api.plane, sandbox)).egress.policy.get("upstream_proxy") is None
    await api.http.put(f"/v1/sandboxes/{sandbox}/policy", json=narrower)
    assert await password_of(api, sandbox) is None, "it is gone with the configuration that brought it"


@pytest.mark.parametrize("path", ["/sandboxes/{}/fork", "/v1/sandboxes/{}/fork?wait=0"])
async def test_a_fork_goes_by_the_same_way(api: Api, path: str) -> None:
    parent = await proxied(api)
    await api.http.post(path.format(parent), json={"count": 1})
    row = await api.plane.db.fetchrow("SELECT id FROM sandboxes WHERE parent = $1", parent)
    assert row is not None
    child = SandboxId(row["id"])
    assert (await egress.orders(api.plane, child)).egress.policy["upstream_proxy"]
    assert await password_of(api, child) == CANARY


async def test_a_password_is_its_projects_and_moves_to_a_new_master_key(api: Api) -> None:
    sandbox = await proxied(api)
    await api.plane.db.execute("INSERT INTO projects (id, name) VALUES ('other', 'other')")
    await api.plane.db.execute("UPDATE sandboxes SET project_id = 'other' WHERE id = $1", sandbox)
    assert await password_of(api, sandbox) is None, "moved in the database"
    await api.plane.db.execute("UPDATE sandboxes SET project_id = $2 WHERE id = $1", sandbox, api.project)
    rotated = dataclasses.replace(api.plane, vault=Vault([NEW_KEY, bytes(32)]))
    assert await secrets.reseal(rotated) == 1
    assert await secrets.reseal(rotated) == 0
    after = dataclasses.replace(api.plane, vault=Vault([NEW_KEY]))
    orders = await egress.orders(after, sandbox)
    assert orders.secrets.values[OWN_PASSWORD].value.get_secret_value() == CANARY


async def test_no_secret_of_a_project_has_its_name(api: Api) -> None:
    answer = await api.http.post("/v1/secrets", json={"name": OWN_PASSWORD, "value": "x"})
    assert answer.status_code in (400, 422)
    assert (await api.http.post("/secrets", json={"name": OWN_PASSWORD, "value": "x"})).status_code == 400
