"""Secrets at rest: written once, readable nowhere, sealed for their place, and sealed anew when the key changes."""

import dataclasses
import datetime

import pytest
from tests.support.control_plane import Api

from space.control import authority, secret_values, secrets
from space.control.vault import Vault
from space.model.ids import ProjectId, WorkerId
from space.store import authority as authority_rows
from space.store.db import Database
from space.wire.gateway import SecretValue

CANARY = "canary-b81e55d0"
NEW_KEY = bytes(range(32))
_COLUMNS = """
SELECT table_name, column_name FROM information_schema.columns
 WHERE table_schema = 'public' AND table_name NOT LIKE 'pg_%'"""


async def dump(db: Database) -> str:
    """Return everything that is in the database, bytes as hex and as they are."""
    texts = []
    for row in await db.fetch(_COLUMNS):
        table, column = row["table_name"], row["column_name"]
        for value in await db.fetch(f'SELECT "{column}" AS value FROM "{table}"'):
            found = value["value"]
            texts.append(f"{found!r} {found.decode('latin-1')}" if isinstance(found, bytes) else str(found))
    return "\n".join(texts)


async def opened(api: Api, vault: Vault, names: list[str]) -> dict[str, SecretValue]:
    """Return the values that a vault opens."""
    return await secret_values.values(api.plane.db, vault, api.project, names)


async def test_a_value_goes_in_and_is_nowhere(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    made = await api.http.post("/v1/secrets", json={"name": "TOKEN", "value": CANARY})
    listed = await api.http.get("/v1/secrets")
    assert (made.status_code, made.json()["version"]) == (201, 1)
    assert [one["name"] for one in listed.json()["secrets"]] == ["TOKEN"]
    wrong = [
        await api.http.post("/v1/secrets", json={"name": "a b", "value": CANARY}),
        await api.http.post("/v1/secrets", json={"name": "A", "value": CANARY + "\n"}),
        await api.http.post("/v1/secrets", json={"name": "A", "value": CANARY + "x" * 9000}),
        await api.http.post("/v1/secrets", json={"name": "A", "value": [CANARY]}),
        await api.http.post("/v1/secrets", json={"name": "A", "value": "x", "more": CANARY}),
        await api.http.post("/v1/secrets", content=f'{{"name": "A", "value": "{CANARY}"'),
    ]
    assert {answer.status_code for answer in wrong} == {400, 422}
    value = (await opened(api, api.plane.vault, ["TOKEN"]))["TOKEN"]
    assert value.value.get_secret_value() == CANARY, "positive control: it is there"
    written = capsys.readouterr()
    logged = written.out + written.err
    assert "secret_set" in logged, "positive control: the log is looked at"
    places = [made.text, listed.text, *(answer.text for answer in wrong), await dump(api.plane.db), logged, repr(value)]
    for text in places:
        assert CANARY not in text
        assert CANARY.encode().hex() not in text


async def test_a_sealed_value_opens_only_as_what_it_is(api: Api) -> None:
    for name in ("ONE", "TWO"):
        await api.http.post("/v1/secrets", json={"name": name, "value": f"value of {name}"})
    await api.plane.db.execute(
        "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'ONE') WHERE name = 'TWO'"
    )
    assert list(await opened(api, api.plane.vault, ["ONE", "TWO"])) == ["ONE"], "copied to another row"
    await api.plane.db.execute("CREATE TABLE kept AS SELECT sealed FROM secrets WHERE name = 'ONE'")
    await api.http.post("/v1/secrets", json={"name": "ONE", "value": "second"})
    await api.plane.db.execute("UPDATE secrets SET sealed = (SELECT sealed FROM kept) WHERE name = 'ONE'")
    assert await opened(api, api.plane.vault, ["ONE"]) == {}, "put back after a rotation"


async def test_a_new_master_key_takes_over(api: Api) -> None:
    await api.http.post("/v1/secrets", json={"name": "TOKEN", "value": CANARY})
    await authority.issue(api.plane, WorkerId("w1"))
    both, only_new = Vault([NEW_KEY, bytes(32)]), Vault([NEW_KEY])
    assert await opened(api, only_new, ["TOKEN"]) == {}
    rotated = dataclasses.replace(api.plane, vault=both)
    assert (await secrets.reseal(rotated), await authority.reseal(rotated)) == (1, True)
    assert (await secrets.reseal(rotated), await authority.reseal(rotated)) == (0, False)
    after = dataclasses.replace(api.plane, vault=only_new)
    assert (await opened(api, only_new, ["TOKEN"]))["TOKEN"].value.get_secret_value() == CANARY
    await authority.issue(after, WorkerId("w1"))
    assert await opened(api, api.plane.vault, ["TOKEN"]) == {}, "the old key is of no use any more"


async def test_what_does_not_open_does_not_stop_the_rest(api: Api) -> None:
    await api.http.post("/v1/secrets", json={"name": "BAD", "value": "x"})
    await api.plane.db.execute("UPDATE secrets SET key_id = 'lost'")
    await api.http.post("/v1/secrets", json={"name": "GOOD", "value": CANARY})
    rotated = dataclasses.replace(api.plane, vault=Vault([NEW_KEY, bytes(32)]))
    assert await secrets.reseal(rotated) == 1
    assert list(await opened(api, rotated.vault, ["BAD", "GOOD"])) == ["GOOD"]


async def test_secrets_of_projects_are_apart(api: Api) -> None:
    await api.http.post("/v1/secrets", json={"name": "TOKEN", "value": CANARY})
    assert await secret_values.values(api.plane.db, api.plane.vault, ProjectId("other"), ["TOKEN"]) == {}


async def test_the_authority_is_one_root_and_short_lived_intermediates(api: Api) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    made = await authority.issue(api.plane, WorkerId("w1"))
    root = x509.load_pem_x509_certificate(made.root.encode())
    certificate = x509.load_pem_x509_certificate(made.certificate.encode())
    certificate.verify_directly_issued_by(root)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    assert certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC) <= authority.LIFE
    key = load_pem_private_key(made.key.get_secret_value().encode(), None)
    assert key.public_key() == certificate.public_key()
    stored = await authority_rows.get(api.plane.db)
    assert stored is not None
    assert stored.certificate == made.root
    assert "PRIVATE KEY" not in await dump(api.plane.db)
