"""Templates of several projects, their names, and when a key was last used."""

import dataclasses
import datetime

from tests.support.rows import DIGEST, insert_sandbox, insert_template

from space.model.errors import SandboxFailed
from space.model.ids import TemplateDigest, hash_api_key, new_api_key
from space.model.lifecycle import State
from space.model.operation import OperationKind
from space.store import keys, operations, projects, templates
from space.store.db import Database

OTHER = TemplateDigest("sha256:" + "b" * 64)


async def test_a_name_points_to_the_last_build_and_the_former_one_stays(db: Database) -> None:
    project = await projects.ensure(db, "p")
    first = await insert_template(db, project, "base")
    second = dataclasses.replace(first, digest=OTHER, built_at=first.built_at + datetime.timedelta(seconds=1))
    async with db.transaction() as tx:
        await templates.record(tx, project, second)
    assert await templates.find(db, project, "base") == second
    assert await templates.find(db, project, DIGEST) == first
    assert await templates.listed(db, project) == [second, first]
    await templates.remove(db, project, OTHER)
    assert await templates.find(db, project, "base") is None, "its name goes with it"


async def test_one_digest_of_two_projects_is_two_templates(db: Database) -> None:
    ours, theirs = await projects.ensure(db, "ours"), await projects.ensure(db, "theirs")
    await insert_template(db, ours)
    assert not await templates.shared(db, ours, DIGEST)
    await insert_template(db, theirs)
    assert await templates.shared(db, ours, DIGEST)
    await templates.remove(db, ours, DIGEST)
    assert await templates.find(db, ours, DIGEST) is None
    assert await templates.find(db, theirs, "base") is not None
    assert not await templates.shared(db, theirs, DIGEST)


async def test_a_project_is_made_once(db: Database) -> None:
    assert await projects.ensure(db, "p") == await projects.ensure(db, "p")


async def test_the_use_of_a_key_is_written_at_most_once_a_minute(db: Database) -> None:
    project = await projects.ensure(db, "p")
    hashed = hash_api_key(new_api_key())
    made = await keys.insert(db, project, hashed, "k")
    assert made.last_used_at is None

    async def used() -> datetime.datetime:
        await keys.touch(db, made.id)
        found = (await keys.by_hashes(db, [hashed]))[hashed]
        assert found.last_used_at is not None
        return found.last_used_at

    first = await used()
    assert await used() == first
    await db.execute("UPDATE api_keys SET last_used_at = last_used_at - interval '61 seconds'")
    assert await used() > first


async def test_no_key_is_stored_in_clear(db: Database) -> None:
    project = await projects.ensure(db, "p")
    text = new_api_key()
    await keys.insert(db, project, hash_api_key(text), "k")
    row = await db.fetchrow("SELECT row_to_json(k)::text AS text FROM api_keys k")
    assert row is not None
    assert text not in row["text"]
    assert text.removeprefix("e2b_") not in row["text"]


async def test_a_snapshot_that_nobody_has_nor_asks_for_is_unknown(db: Database) -> None:
    """A worker had made it, and its taker died before that was recorded."""
    project = await projects.ensure(db, "p")
    recorded = (await insert_template(db, project)).digest
    busy, idle = [await insert_sandbox(db, project, state=State.RUNNING) for _ in range(2)]
    async with db.transaction() as tx:
        asked = await operations.insert(tx, busy, OperationKind.SNAPSHOT)
    being_made, left = TemplateDigest("sha256:" + "b" * 64), TemplateDigest("sha256:" + "c" * 64)
    held = {recorded: idle.id, being_made: busy.id, left: idle.id}
    assert await templates.unknown(db, held) == [left]
    assert await templates.unknown(db, {}) == []
    async with db.transaction() as tx:
        assert asked is not None
        await operations.finish(tx, asked.id, SandboxFailed("it failed"))
    assert set(await templates.unknown(db, held)) == {being_made, left}
