"""Rows under several writers: leases, epochs, the record of events, lists."""

import asyncio
import dataclasses
import re

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.rows import DIGEST, insert_sandbox, insert_template

from space.model.errors import Stale
from space.model.ids import ProjectId, SandboxId, TemplateDigest, WorkerId, new_id
from space.model.lifecycle import TRANSITIONS, Event, State, advance
from space.model.sandbox import Desired, Sandbox
from space.model.sandbox_query import SandboxQuery
from space.store import events, projects, sandboxes, wishes
from space.store.db import Database
from space.store.sandboxes import Lease, Page

OURS, THEIRS = Lease("ours", 10), Lease("theirs", 10)
EXPIRED = Lease("ours", 0)


@pytest.fixture
async def project(db: Database) -> ProjectId:
    made = await projects.ensure(db, "p")
    await insert_template(db, made)
    return made


async def test_the_sql_check_allows_exactly_the_states_of_the_model(db: Database) -> None:
    row = await db.fetchrow(
        "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint WHERE conname = 'sandboxes_state'"
    )
    assert row is not None
    reachable = set(TRANSITIONS) | {state for follows in TRANSITIONS.values() for state in follows.values()}
    assert set(re.findall(r"'(\w+)'", row["text"])) == reachable == set(State)
    desired = await db.fetchrow(
        "SELECT pg_get_constraintdef(oid) AS t FROM pg_constraint WHERE conname = 'sandboxes_desired'"
    )
    assert desired is not None
    assert set(re.findall(r"'(\w+)'", desired["t"])) == set(Desired)


async def test_a_sandbox_is_read_back_as_it_was_written(db: Database, project: ProjectId) -> None:
    made = await insert_sandbox(db, project, env={"A": "é=\n"}, labels={"k": "v"})
    assert await sandboxes.get(db, made.id) == made
    assert (made.state, made.generation, made.observed_generation, made.epoch) == (State.CREATING, 1, 0, 1)
    assert made.spec.env == {"A": "é=\n"}


async def test_only_one_gets_the_lease(db: Database, project: ProjectId) -> None:
    made = await insert_sandbox(db, project)
    won: list[Sandbox] = []

    async def attempt(owner: str) -> None:
        held = await sandboxes.acquire(db, made.id, Lease(owner, 10))
        if held is not None:
            won.append(held)

    async with asyncio.TaskGroup() as tasks:
        for number in range(8):
            tasks.create_task(attempt(f"p{number}"))
    assert [held.epoch for held in won] == [2]


async def test_a_lease_that_ran_out_is_taken_over_and_its_holder_fenced(db: Database, project: ProjectId) -> None:
    made = await insert_sandbox(db, project)
    slow = await sandboxes.acquire(db, made.id, EXPIRED)
    quick = await sandboxes.acquire(db, made.id, THEIRS)
    assert slow is not None
    assert quick is not None
    assert quick.epoch == slow.epoch + 1
    with pytest.raises(Stale):
        await sandboxes.place(db, slow, WorkerId("w"))
    async with db.transaction() as tx:
        with pytest.raises(Stale):
            await sandboxes.move(tx, slow, Event.STARTED)
    await sandboxes.release(db, slow)
    assert await sandboxes.acquire(db, made.id, OURS) is None, "releasing an overtaken lease must not free the new one"
    async with db.transaction() as tx:
        moved = await sandboxes.move(tx, await sandboxes.place(db, quick, WorkerId("w")), Event.STARTED)
    assert (moved.state, moved.worker, moved.observed_generation) == (State.RUNNING, "w", 1)


async def test_a_renewed_lease_is_not_taken_over(db: Database, project: ProjectId) -> None:
    made = await insert_sandbox(db, project)
    held = await sandboxes.acquire(db, made.id, EXPIRED)
    assert held is not None
    await sandboxes.renew(db, {held.id: held.epoch}, 10)
    assert await sandboxes.acquire(db, made.id, THEIRS) is None
    await sandboxes.renew(db, {held.id: held.epoch - 1}, -10)
    assert await sandboxes.acquire(db, made.id, THEIRS) is None, "an old epoch renews nothing"


async def test_a_delete_overtakes_who_starts_it(db: Database, project: ProjectId) -> None:
    made = await insert_sandbox(db, project)
    starting = await sandboxes.acquire(db, made.id, OURS)
    assert starting is not None
    await wishes.ask_delete(db, made.id)
    async with db.transaction() as tx:
        with pytest.raises(Stale):
            await sandboxes.move(tx, starting, Event.STARTED)
    deleting = await sandboxes.acquire(db, made.id, THEIRS)
    assert deleting is not None
    assert deleting.spec.desired is Desired.DELETED


async def test_a_settled_row_has_no_lease_to_take_and_does_not_lag(db: Database, project: ProjectId) -> None:
    made = await insert_sandbox(db, project, state=State.RUNNING)
    assert await sandboxes.acquire(db, made.id, OURS) is None
    assert await sandboxes.lagging(db, 10) == []
    await wishes.ask_delete(db, made.id)
    assert await sandboxes.lagging(db, 10) == [made.id]
    held = await sandboxes.acquire(db, made.id, OURS)
    assert held is not None
    assert await sandboxes.lagging(db, 10) == [], "what is held is left to its holder"
    await sandboxes.release(db, held)
    assert await sandboxes.lagging(db, 10) == [made.id]


async def test_only_a_create_that_nobody_works_on_is_abandoned(db: Database, project: ProjectId) -> None:
    made = await insert_sandbox(db, project)
    assert not await sandboxes.abandon(db, made.id, "too old", 60)
    held = await sandboxes.acquire(db, made.id, OURS)
    assert held is not None
    assert not await sandboxes.abandon(db, made.id, "in work", 0)
    await sandboxes.release(db, held)
    assert await sandboxes.abandon(db, made.id, "given up", 0)
    found = await sandboxes.get(db, made.id)
    assert found is not None
    assert (found.spec.desired, found.reason) == (Desired.DELETED, "given up")


async def test_a_deleted_row_keeps_no_secret(db: Database, project: ProjectId) -> None:
    made = await insert_sandbox(db, project, env={"TOKEN": "s3cret"}, state=State.DELETED)
    row = await db.fetchrow("SELECT row_to_json(s)::text AS text FROM sandboxes s WHERE id = $1", made.id)
    assert row is not None
    assert "s3cret" not in row["text"]
    assert made.spec.agent_token == ""


async def test_the_record_of_events_cannot_be_changed(db: Database, project: ProjectId) -> None:
    made = await insert_sandbox(db, project, state=State.RUNNING)
    with pytest.raises(asyncpg.PostgresError, match="append-only"):
        await db.execute("UPDATE events SET reason = 'x' WHERE sandbox_id = $1", made.id)


@given(happened=st.lists(st.sampled_from(Event), max_size=8))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_state_and_events_tell_the_same_story(db: Database, happened: list[Event]) -> None:
    project = await projects.ensure(db, "p")
    await insert_template(db, project)
    sandbox = await insert_sandbox(db, project)
    states = [State.CREATING]
    for event in happened:
        if event in TRANSITIONS[sandbox.state]:
            states.append(advance(sandbox.state, event))
            async with db.transaction() as tx:
                sandbox = await sandboxes.move(tx, sandbox, event, reason=event)
    assert await sandboxes.get(db, sandbox.id) == sandbox
    told = await events.listed(db, sandbox.id, 0, 100)
    assert [event.sequence for event in told] == list(range(1, len(states) + 1))
    assert [event.state for event in told] == states
    assert [event.from_state for event in told] == [None, *states[:-1]]


async def test_lists_are_newest_first_and_pages_meet(db: Database, project: ProjectId) -> None:
    made = [(await insert_sandbox(db, project, labels={"n": str(n % 2), "all": "x"})).id for n in range(7)]
    other = await projects.ensure(db, "other")
    await insert_template(db, other)
    await insert_sandbox(db, other, labels={"all": "x"})
    found: list[SandboxId] = []
    page = Page(3)
    while rows := await sandboxes.listed(db, project, SandboxQuery(labels={"all": "x"}), page):
        found += [row.id for row in rows]
        page = dataclasses.replace(page, after=(rows[-1].created_at, rows[-1].id))
    assert found == made[::-1]

    async def listed(query: SandboxQuery) -> list[SandboxId]:
        return [row.id for row in await sandboxes.listed(db, project, query, Page(9))]

    assert await listed(SandboxQuery(labels={"n": "1"})) == made[5::-2]
    assert await listed(SandboxQuery(frozenset({State.RUNNING}))) == []
    assert await listed(SandboxQuery(labels={"n": "1", "all": "y"})) == []
    assert await listed(SandboxQuery(oldest_first=True)) == made
    third = await sandboxes.get(db, made[3])
    assert third is not None
    assert await listed(SandboxQuery(since=third.created_at)) == made[:2:-1], "the moment itself is in it"
    assert await listed(SandboxQuery(template=(DIGEST, "other"))) == made[::-1]
    assert await listed(SandboxQuery(template=(TemplateDigest("sha256:b"), third.spec.template_name))) == made[::-1]
    assert await listed(SandboxQuery(template=(TemplateDigest("sha256:b"), "other"))) == []
    assert await sandboxes.how_many(db, project, SandboxQuery(labels={"n": "1"})) == 3


async def test_nothing_starts_from_a_template_that_is_gone(db: Database, project: ProjectId) -> None:
    known = await insert_sandbox(db, project)
    spec = dataclasses.replace(known.spec, template=type(known.spec.template)("sha256:" + "0" * 64))
    assert await sandboxes.insert(db, SandboxId(new_id()), project, spec, None, None) is None
