"""Operations, and the idempotency keys that belong to those that create."""

import dataclasses

from space.model.errors import SpaceError
from space.model.ids import OperationId, ProjectId, SandboxId, new_id
from space.model.operation import Operation, OperationKind, OperationStatus
from space.store.db import Queries, Record

_COLUMNS = "id, project_id, sandbox_id, kind, status, error_code, error_detail, created_at, finished_at"
_INSERT = f"""
INSERT INTO operations (id, project_id, sandbox_id, kind, idempotency_key, request_hash)
VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (project_id, idempotency_key) DO NOTHING RETURNING {_COLUMNS}"""
_BY_KEY = f"SELECT {_COLUMNS}, request_hash FROM operations WHERE project_id = $1 AND idempotency_key = $2"
_GET = f"SELECT {_COLUMNS} FROM operations WHERE project_id = $1 AND id = $2"
_RUNNING = f"""
SELECT {_COLUMNS} FROM operations
 WHERE sandbox_id = $1 AND kind = $2 AND status = 'running' ORDER BY created_at LIMIT 1"""
_FINISH = """
UPDATE operations SET status = 'succeeded', finished_at = now()
 WHERE sandbox_id = $1 AND kind = $2 AND status = 'running'"""
_FAIL = """
UPDATE operations SET status = 'failed', finished_at = now(), error_code = $3, error_detail = $4
 WHERE sandbox_id = $1 AND kind = $2 AND status = 'running'"""
_FREE_KEY = "UPDATE operations SET idempotency_key = NULL WHERE sandbox_id = $1 AND kind = 'create'"


@dataclasses.dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What a client sends so that a repeated request is done once. `request_hash` covers what was asked."""

    text: str
    request_hash: str


def _operation(row: Record) -> Operation:
    return Operation(
        id=OperationId(row["id"]),
        project=ProjectId(row["project_id"]),
        sandbox=SandboxId(row["sandbox_id"]),
        kind=OperationKind(row["kind"]),
        status=OperationStatus(row["status"]),
        error_code=row["error_code"],
        error_detail=row["error_detail"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
    )


async def insert(
    tx: Queries, project: ProjectId, sandbox: SandboxId, kind: OperationKind, key: IdempotencyKey | None = None
) -> Operation | None:
    """Begin one; None where the project has used this idempotency key before."""
    text, request_hash = (key.text, key.request_hash) if key else (None, None)
    row = await tx.fetchrow(_INSERT, new_id(), project, sandbox, kind, text, request_hash)
    return None if row is None else _operation(row)


async def by_key(db: Queries, project: ProjectId, text: str) -> tuple[Operation, str] | None:
    """Return the operation that used this idempotency key, and the hash of what was asked then."""
    row = await db.fetchrow(_BY_KEY, project, text)
    return None if row is None else (_operation(row), row["request_hash"])


async def get(db: Queries, project: ProjectId, operation: OperationId) -> Operation | None:
    """Return one of the project's operations."""
    row = await db.fetchrow(_GET, project, operation)
    return None if row is None else _operation(row)


async def running(db: Queries, sandbox: SandboxId, kind: OperationKind) -> Operation | None:
    """Return the sandbox's running operation of this kind, if there is one."""
    row = await db.fetchrow(_RUNNING, sandbox, kind)
    return None if row is None else _operation(row)


async def succeed(tx: Queries, sandbox: SandboxId, kind: OperationKind) -> None:
    """Finish the sandbox's running operations of this kind."""
    await tx.execute(_FINISH, sandbox, kind)


async def fail(tx: Queries, sandbox: SandboxId, kind: OperationKind, error: SpaceError) -> None:
    """Finish them with an error; only what a user may read of it is kept."""
    await tx.execute(_FAIL, sandbox, kind, error.slug, str(error))


async def free_key(tx: Queries, sandbox: SandboxId) -> None:
    """Let the idempotency key of a create be used again: nothing came of it, so a repeated request should try anew."""
    await tx.execute(_FREE_KEY, sandbox)
