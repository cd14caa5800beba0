"""What happened to each sandbox: append-only, numbered from 1 within the sandbox."""

from space.model.ids import SandboxId
from space.model.operation import SandboxEvent
from space.store.db import Queries

_LIST = """
SELECT sandbox_id, sequence, at, type, from_state, state, reason FROM events
 WHERE sandbox_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3"""


def append_sql(changed: str, kind: str, from_state: str, reason: str) -> str:
    """Return SQL that adds one, as part of the statement whose CTE `changed` has the row as it is afterwards.

    The other arguments are SQL too. The number comes from the row, and the row's lock keeps the order.
    """
    return f"""
INSERT INTO events (sandbox_id, sequence, type, from_state, state, reason)
SELECT id, last_event, {kind}, {from_state}, state, {reason} FROM {changed}"""


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
