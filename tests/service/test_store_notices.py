"""Notices: ids only, and none is missed for good when the connection breaks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.rows import insert_sandbox, insert_template

from space.model.lifecycle import Event
from space.model.operation import OperationKind
from space.store import operations, projects, sandboxes, wishes
from space.store.db import Database
from space.store.notices import Channel, Notices
from space.store.operations import Ending


@contextlib.asynccontextmanager
async def told_by(db: Database) -> AsyncIterator[tuple[Notices, "asyncio.Queue[tuple[Channel, str | None]]"]]:
    """Listen, and collect what is told, from the first "anything may have changed" on."""
    notices = Notices(db)
    queue: asyncio.Queue[tuple[Channel, str | None]] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        with contextlib.ExitStack() as stack:
            for channel in Channel:
                listener = lambda ident, channel=channel: queue.put_nowait((channel, ident))  # noqa: E731 - three of them
                stack.enter_context(notices.listening(channel, listener))
            running = group.create_task(notices.run())
            for channel in Channel:
                assert await next_of(queue) == (channel, None)
            yield notices, queue
            running.cancel()


async def next_of(queue: "asyncio.Queue[tuple[Channel, str | None]]") -> tuple[Channel, str | None]:
    """Return the next notice."""
    async with asyncio.timeout(10):
        return await queue.get()


async def test_each_change_of_state_tells_the_id(db: Database) -> None:
    project = await projects.ensure(db, "p")
    await insert_template(db, project)
    async with told_by(db) as (_, queue):
        made = await insert_sandbox(db, project)
        assert await next_of(queue) == (Channel.SANDBOX, made.id)
        async with db.transaction() as tx:
            await operations.insert(tx, made, OperationKind.CREATE)
            await sandboxes.move(tx, made, Event.STARTED, ending=Ending(satisfied=(OperationKind.CREATE,)))
        assert await next_of(queue) == (Channel.SANDBOX, made.id)
        channel, ident = await next_of(queue)
        assert channel is Channel.OPERATION
        assert ident is not None


async def test_a_lease_tells_nobody(db: Database) -> None:
    project = await projects.ensure(db, "p")
    await insert_template(db, project)
    made = await insert_sandbox(db, project)
    async with told_by(db) as (_, queue):
        held = await sandboxes.acquire(db, made.id, sandboxes.Lease("me", 10))
        assert held is not None
        await sandboxes.release(db, held)
        await wishes.ask_delete(db, made.id)
        assert await next_of(queue) == (Channel.SANDBOX, made.id)
        assert queue.empty()


async def test_what_is_rolled_back_was_never_told(db: Database) -> None:
    project = await projects.ensure(db, "p")
    await insert_template(db, project)
    made = await insert_sandbox(db, project)
    async with told_by(db) as (_, queue):
        async with db.transaction() as tx:
            await sandboxes.move(tx, made, Event.STARTED)
            with pytest.raises(asyncpg.DivisionByZeroError):
                await tx.execute("SELECT 1/0")  # the transaction is void from here on
        await wishes.ask_delete(db, made.id)
        await next_of(queue)
        assert queue.empty()


async def test_after_a_broken_connection_anything_may_have_changed(db: Database) -> None:
    project = await projects.ensure(db, "p")
    await insert_template(db, project)
    made = await insert_sandbox(db, project)
    async with told_by(db) as (notices, queue):
        with notices.changes(Channel.SANDBOX, made.id) as changed:
            await db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN%' AND pid <> pg_backend_pid()"
            )
            async with asyncio.timeout(10):
                await changed.wait()
        for channel in Channel:
            assert await next_of(queue) == (channel, None)
        await wishes.ask_delete(db, made.id)
        assert await next_of(queue) == (Channel.SANDBOX, made.id)


async def test_a_pool_whose_connections_were_ended_recovers(db: Database) -> None:
    await db.execute("SELECT 1")
    async with db.session() as other:
        await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    await db.wait_ready(10)
