"""Migrations: forward only, each once, and the schema file is their sum."""

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.support import postgres

from space.store import migrate
from space.store.db import Database, Record, connected

_CATALOG = """
SELECT 'column' AS kind, c.relname AS of, a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
       || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '') AS what
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'r'
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname || ' ' || pg_get_constraintdef(oid)
  FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'index', tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'trigger', tgrelid::regclass::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
ORDER BY 1, 2, 3"""


async def catalog(db: Database) -> list[Record]:
    rows = await db.fetch(_CATALOG)
    return [row for row in rows if row["of"] != "schema_migrations"]


async def test_the_schema_file_is_the_sum_of_the_migrations(server: postgres.Server, db: Database) -> None:
    async with server.empty_database() as url, connected(url) as other:
        await other.execute((migrate.MIGRATIONS.parent / "schema.sql").read_text())
        written, summed = await catalog(other), await catalog(db)
    assert written == summed
    assert {"column", "constraint", "index", "trigger", "function"} <= {row["kind"] for row in summed}


def write(folder: Path, **texts: str) -> Path:
    for name, sql in texts.items():
        (folder / f"{name.removeprefix('m')}.sql").write_text(sql)
    return folder


async def test_each_migration_runs_once(server: postgres.Server, tmp_path: Path) -> None:
    folder = write(tmp_path, m0001_a="CREATE TABLE a (x int)", m0002_b="CREATE TABLE b (x int)")
    async with server.empty_database() as url, connected(url) as db:
        assert await migrate.migrate(db, folder) == ["0001_a", "0002_b"]
        assert await migrate.migrate(db, folder) == []
        write(folder, m0003_c="ALTER TABLE a ADD y int")
        assert await migrate.migrate(db, folder) == ["0003_c"]


async def test_processes_that_start_together_migrate_once(server: postgres.Server, tmp_path: Path) -> None:
    folder = write(tmp_path, m0001_a="CREATE TABLE a (x int)", m0002_b="CREATE TABLE b (x int)")
    done: list[list[str]] = []

    async def one(url: SecretStr) -> None:
        async with connected(url) as db:
            done.append(await migrate.migrate(db, folder))

    async with server.empty_database() as url, asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(one(url))
    assert sorted(done) == [[], [], [], [], ["0001_a", "0002_b"]]


async def test_a_failing_migration_leaves_the_schema_as_it_was(server: postgres.Server, tmp_path: Path) -> None:
    folder = write(tmp_path, m0001_a="CREATE TABLE a (x int)", m0002_b="CREATE TABLE b (x int); SELECT 1/0;")
    async with server.empty_database() as url, connected(url) as db:
        with pytest.raises(Exception, match="division by zero"):
            await migrate.migrate(db, folder)
        assert [row["of"] for row in await catalog(db)] == ["a"]
        write(folder, m0002_b="CREATE TABLE b (x int)")
        assert await migrate.migrate(db, folder) == ["0002_b"]


async def test_a_changed_or_missing_migration_is_refused(server: postgres.Server, tmp_path: Path) -> None:
    folder = write(tmp_path, m0001_a="CREATE TABLE a (x int)", m0002_b="CREATE TABLE b (x int)")
    async with server.empty_database() as url, connected(url) as db:
        await migrate.migrate(db, folder)
        write(folder, m0001_a="CREATE TABLE a (x bigint)")
        with pytest.raises(migrate.MigrationRefused, match="0001_a was changed"):
            await migrate.migrate(db, folder)
        write(folder, m0001_a="CREATE TABLE a (x int)")
        (folder / "0001_a.sql").unlink()
        with pytest.raises(migrate.MigrationRefused, match="without gaps"):
            await migrate.migrate(db, folder)


async def test_old_code_runs_on_a_newer_schema(server: postgres.Server, tmp_path: Path) -> None:
    folder = write(tmp_path, m0001_a="CREATE TABLE a (x int)", m0002_b="CREATE TABLE b (x int)")
    async with server.empty_database() as url, connected(url) as db:
        await migrate.migrate(db, folder)
        (folder / "0002_b.sql").unlink()
        assert await migrate.migrate(db, folder) == []
