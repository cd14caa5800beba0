"""Notices: ids only, and none is missed for good when the connection breaks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.rows import insert_sandbox, insert_template

from space.model.lifecycle import Event, State
from space.model.operation import OperationKind
from space.model.sandbox import Desired
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


_END = (Channel.KEY, "the end")


async def tell_end(db: Database) -> None:
    """Tell something that comes after everything so far."""
    await db.execute("SELECT pg_notify($1, $2)", *map(str, _END))


async def told_no_more(db: Database, queue: "asyncio.Queue[tuple[Channel, str | None]]") -> None:
    """Check that nothing has been told that was not looked at."""
    await tell_end(db)
    assert await next_of(queue) == _END


async def test_each_change_of_state_tells_the_id(db: Database) -> None:
    project = await projects.ensure(db, "p")
    await insert_template(db, project)
    async with told_by(db) as (_, queue):
        made = await insert_sandbox(db, project)
        assert await next_of(queue) == (Channel.SANDBOX, made.id)
        assert await next_of(queue) == (Channel.LAGGING, made.id)
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
        assert await next_of(queue) == (Channel.LAGGING, made.id)
        await told_no_more(db, queue)


async def test_who_carries_lagging_rows_on_is_told_of_those_that_nobody_holds(db: Database) -> None:
    project = await projects.ensure(db, "p")
    await insert_template(db, project)
    row = await insert_sandbox(db, project, state=State.RUNNING)

    async def told(queue: "asyncio.Queue[tuple[Channel, str | None]]") -> bool:
        """Tell whether the changes since the last call were told there."""
        await tell_end(db)
        found = []
        while (next_one := await next_of(queue)) != _END:
            found.append(next_one)
        assert (Channel.SANDBOX, row.id) in found, "everybody else is told of all"
        return (Channel.LAGGING, row.id) in found

    async with told_by(db) as (_, queue):
        held = await wishes.wish(db, row.id, Desired.SUSPENDED, lease=sandboxes.Lease("me", 60))
        assert not await told(queue), "its writer does it"
        begun = await sandboxes.move(db, held, Event.SUSPEND_BEGUN)
        assert not await told(queue)
        await wishes.wish(db, row.id, Desired.RUNNING)
        assert not await told(queue), "who holds it will see it"
        await sandboxes.move(db, begun, Event.SUSPENDED)
        assert not await told(queue)
        await db.execute("UPDATE sandboxes SET lease_until = now() - interval '1 s'")
        await wishes.raise_generation(db, row.id)
        assert await told(queue), "who held it is gone"
        await db.execute("UPDATE sandboxes SET lease_owner = NULL, lease_until = NULL, desired = 'suspended'")
        lagging = await sandboxes.get(db, row.id)
        assert lagging is not None
        await sandboxes.answer(db, lagging, reason=None)
        settled = await sandboxes.get(db, row.id)
        assert settled is not None
        await sandboxes.move(db, settled, Event.RESTORE_BEGUN)
        assert await told(queue), "the watch has found it out, and leaves it to others"
        await wishes.wish(db, row.id, Desired.RUNNING)
        assert await told(queue), "nobody waits for it"


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
        assert [await next_of(queue) for _ in range(2)] == [(Channel.SANDBOX, made.id), (Channel.LAGGING, made.id)]
        await told_no_more(db, queue)


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
