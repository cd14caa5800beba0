"""Operations, and the idempotency keys that belong to those that create."""

import dataclasses
from collections.abc import Collection, Mapping

from space.model.errors import SpaceError
from space.model.ids import OperationId, ProjectId, SandboxId, new_id
from space.model.lifecycle import TRANSIENT
from space.model.operation import WISHES, IdempotencyKey, Operation, OperationKind, OperationStatus
from space.model.sandbox import Sandbox
from space.store.db import Queries, Record

_COLUMNS = """
id, project_id, sandbox_id, kind, status, error_code, error_detail, created_at, finished_at, generation, arguments,
result"""
_INSERT = f"""
INSERT INTO operations (id, project_id, sandbox_id, kind, idempotency_key, request_hash, generation, arguments)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (project_id, idempotency_key) DO NOTHING RETURNING {_COLUMNS}"""
_BY_KEY = f"SELECT {_COLUMNS}, request_hash FROM operations WHERE project_id = $1 AND idempotency_key = $2"
_GET = f"SELECT {_COLUMNS} FROM operations WHERE project_id = $1 AND id = $2"
_RUNNING = f"""
SELECT {_COLUMNS} FROM operations
 WHERE sandbox_id = $1 AND kind = $2 AND status = 'running' ORDER BY created_at LIMIT 1"""
_ASKED = f"""
SELECT {_COLUMNS} FROM operations
 WHERE sandbox_id = $1 AND kind = $2 AND status = 'running' ORDER BY generation, created_at, id"""
_FINISH = """
UPDATE operations SET status = $2, finished_at = now(), result = $3, error_code = $4, error_detail = $5
 WHERE id = $1 AND status = 'running'"""
_FREE_KEY = "UPDATE operations SET idempotency_key = NULL WHERE sandbox_id = $1 AND kind IN ('create', 'fork')"


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """What a change of a sandbox's row does to its running operations.

    The `satisfied` kinds end with success. The `refused` kinds end with `error`, as far as their wish is no later than
    the one that was carried out; a later one has not been tried yet. Only what a user may read of the error is kept.
    Where the row answers all wishes then, those that a later one replaced before they came true end as overtaken.
    """

    satisfied: Collection[OperationKind] = ()
    refused: Collection[OperationKind] = ()
    error: SpaceError | None = None

    def arguments(self) -> tuple[object, ...]:
        """Return the parameters of `ending_sql`."""
        code, detail = (self.error.slug, str(self.error)) if self.error else (None, None)
        return list(self.satisfied), list(self.refused), code, detail


NONE_ENDS = Ending()
"""But for those that are overtaken."""


def begin_sql(wished: str, ident: str, kind: str) -> str:
    """Return SQL that begins one, as part of the statement whose CTE `wished` has the row with the wish.

    `ident` and `kind` are SQL too; where `ident` is NULL none is begun.
    """
    return f"""
INSERT INTO operations (id, project_id, sandbox_id, kind, generation)
SELECT {ident}, project_id, id, {kind}, generation FROM {wished} WHERE {ident} IS NOT NULL"""


def begun(ident: OperationId, kind: OperationKind, wished: Sandbox) -> Operation:
    """Return what `begin_sql` has written."""
    return Operation(
        id=ident,
        project=wished.project,
        sandbox=wished.id,
        kind=kind,
        status=OperationStatus.RUNNING,
        error_code=None,
        error_detail=None,
        created_at=wished.updated_at,
        finished_at=None,
        generation=wished.generation,
    )


def ending_sql(changed: str, carried_out: str, first: int) -> str:
    """Return SQL that does it, as part of a statement whose CTE `changed` has the row as it is afterwards.

    `carried_out` is SQL for the generation that was; `Ending.arguments` are the parameters from number `first` on.
    """
    satisfied, refused, code, detail = (f"${number}::text" for number in range(first, first + 4))
    succeeded = f"kind = ANY({satisfied}[])"
    failed = f"kind = ANY({refused}[]) AND operations.generation <= {carried_out}"
    return f"""
UPDATE operations
   SET status = CASE WHEN {succeeded} THEN 'succeeded' ELSE 'failed' END, finished_at = now(),
       error_code = CASE WHEN {succeeded} THEN NULL WHEN {failed} THEN {code} ELSE 'overtaken' END,
       error_detail = CASE WHEN {succeeded} THEN NULL WHEN {failed} THEN {detail}
                           ELSE 'A later call has overtaken this one; sandbox ' || {changed}.id || ' is '
                                || {changed}.state || '.' END
  FROM {changed}
 WHERE operations.sandbox_id = {changed}.id AND status = 'running'
   AND ({succeeded} OR {failed}
        OR kind IN ({_texts(WISHES)}) AND operations.generation <= {changed}.generation
           AND {changed}.observed_generation >= {changed}.generation
           AND {changed}.state NOT IN ({_texts(TRANSIENT)}))"""


def before_asked_sql(sandbox: str, refused: str) -> str:
    """Return SQL for the last generation of `sandbox` before the snapshots that are still to be taken; NULL for none.

    Their wish shows in nothing but themselves. `refused`: kinds that end now.
    """
    return f"""
(SELECT min(generation) - 1 FROM operations
  WHERE sandbox_id = {sandbox} AND kind = '{OperationKind.SNAPSHOT}' AND status = 'running'
    AND kind <> ALL({refused}::text[]))"""


def _texts(values: Collection[str]) -> str:
    return ", ".join(f"'{value}'" for value in sorted(values))


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
        generation=row["generation"],
        arguments=row["arguments"],
        result=row["result"],
    )


async def insert(
    tx: Queries,
    sandbox: Sandbox,
    kind: OperationKind,
    key: IdempotencyKey | None = None,
    arguments: Mapping[str, str | bool] | None = None,
) -> Operation | None:
    """Begin one for the wish that the row holds; None where the project has used this idempotency key before."""
    text, request_hash = (key.text, key.request_hash) if key else (None, None)
    row = await tx.fetchrow(
        _INSERT, new_id(), sandbox.project, sandbox.id, kind, text, request_hash, sandbox.generation,
        dict(arguments or {}),
    )  # fmt: skip
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


async def asked(db: Queries, sandbox: SandboxId, kind: OperationKind) -> list[Operation]:
    """Return the sandbox's running operations of this kind, first asked first."""
    return [_operation(row) for row in await db.fetch(_ASKED, sandbox, kind)]


async def finish(tx: Queries, operation: OperationId, outcome: str | SpaceError) -> None:
    """Finish one with its result or its error."""
    if isinstance(outcome, SpaceError):
        await tx.execute(_FINISH, operation, OperationStatus.FAILED, None, outcome.slug, str(outcome))
    else:
        await tx.execute(_FINISH, operation, OperationStatus.SUCCEEDED, outcome, None, None)


async def free_key(tx: Queries, sandbox: SandboxId) -> None:
    """Let the idempotency key of a create be used again: nothing came of it, so a repeated request should try anew."""
    await tx.execute(_FREE_KEY, sandbox)
