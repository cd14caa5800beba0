"""What happened to each sandbox: append-only, numbered from 1 within the sandbox."""

from space.model.ids import SandboxId
from space.model.operation import SandboxEvent
from space.store.db import Queries

_APPEND = """
INSERT INTO events (sandbox_id, sequence, type, from_state, state, reason) VALUES ($1, $2, $3, $4, $5, $6)"""
_LIST = """
SELECT sandbox_id, sequence, at, type, from_state, state, reason FROM events
 WHERE sandbox_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3"""


async def append(
    tx: Queries, sandbox: SandboxId, sequence: int, kind: str, from_state: str | None, state: str, reason: str | None
) -> None:
    """Add one; `sequence` comes from the sandbox's row, in the transaction that changed it."""
    await tx.execute(_APPEND, sandbox, sequence, kind, from_state, state, reason)


async def listed(db: Queries, sandbox: SandboxId, after: int, limit: int) -> list[SandboxEvent]:
    """Return the events that follow number `after`, oldest first."""
    rows = await db.fetch(_LIST, sandbox, after, limit)
    return [
        SandboxEvent(
            sandbox=SandboxId(row["sandbox_id"]),
            sequence=row["sequence"],
            at=row["at"],
            type=row["type"],
            from_state=row["from_state"],
            state=row["state"],
            reason=row["reason"],
        )
        for row in rows
    ]
