"""Brings a database to the schema of this code: forward only, each file once, by one process at a time.

An applied file is recorded with its checksum. A file that was changed or removed after it was applied is refused,
because nobody can tell any more what the database holds. A database that is *newer* than the code is fine: the old code
runs on the new schema while processes are replaced one by one.
"""

import dataclasses
import hashlib
import re
from pathlib import Path

from space.store.db import Database
from space.telemetry import logger

MIGRATIONS = Path(__file__).parent / "migrations"
_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_LOCK = 0x5350_4143_4500_0001
"""Key of the advisory lock: "SPACE", and 1 for migrations."""

_CREATE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)"""
_APPLIED = "SELECT version, name, checksum FROM schema_migrations ORDER BY version"
_RECORD = "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)"


class MigrationRefused(Exception):
    """The database and the migration files contradict each other; the text says which file and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Migration:
    """One file."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def read(folder: Path) -> list[Migration]:
    """Return the migrations of a folder in order; a file that is not named `0001_words.sql` is refused."""
    found = []
    for path in sorted(folder.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise MigrationRefused(f"{path} is not named like 0001_words.sql; rename or remove it.")
        found.append(Migration(int(match[1]), path.stem, path.read_text()))
    numbers = [migration.version for migration in found]
    if numbers != list(range(1, len(numbers) + 1)):
        raise MigrationRefused(f"{folder}: the files must be numbered 1, 2, 3... without gaps; got {numbers}.")
    return found


def pending(known: list[Migration], applied: list[tuple[int, str, str]]) -> list[Migration]:
    """Return what is still to be applied; raise MigrationRefused where the past does not match.

    `applied` is (version, name, checksum) as recorded.
    """
    by_version = {migration.version: migration for migration in known}
    for version, name, checksum in applied:
        migration = by_version.get(version)
        if migration is None:
            if version > len(known):
                continue
            raise MigrationRefused(f"Migration {name} was applied to this database but its file is missing.")
        if (migration.name, migration.checksum) != (name, checksum):
            raise MigrationRefused(
                f"Migration {name} was changed after it was applied to this database. "
                "Restore the file, and put the change into a new one."
            )
    done = {version for version, _, _ in applied}
    return [migration for migration in known if migration.version not in done]


async def migrate(db: Database, folder: Path = MIGRATIONS) -> list[str]:
    """Apply what is missing and return the names; waits while another process does the same."""
    known = read(folder)
    async with db.session() as session:
        await session.execute("SELECT pg_advisory_lock($1)", _LOCK, timeout=300)
        await session.execute(_CREATE)
        applied = [(row["version"], row["name"], row["checksum"]) for row in await session.fetch(_APPLIED)]
        todo = pending(known, applied)
        for migration in todo:
            async with session.transaction():
                await session.execute(migration.sql)
                await session.execute(_RECORD, migration.version, migration.name, migration.checksum)
            logger().info("migration_applied", migration=migration.name)
    return [migration.name for migration in todo]
