"""What may leave each sandbox, the ceilings of projects, and how far workers have learned of it.

A row's policy is read together with its project's ceiling, since only both together say anything.
"""

from collections.abc import Collection

from space.model.egress import Document, Generations, SandboxEgress
from space.model.ids import ProjectId, SandboxId, WorkerId
from space.model.lifecycle import State
from space.model.secret import Sealed
from space.store.db import Queries, Record

_COLUMNS = """
s.id, s.project_id, s.state, s.worker, s.policy, s.policy_secrets, s.policy_generation, s.policy_applied,
s.secrets_generation, s.secrets_applied, s.proxy_password, s.proxy_password_key, p.ceiling"""
_GET = f"SELECT {_COLUMNS} FROM sandboxes s JOIN projects p ON p.id = s.project_id WHERE s.id = $1"
_BY_IDS = f"SELECT {_COLUMNS} FROM sandboxes s JOIN projects p ON p.id = s.project_id WHERE s.id = ANY($1::text[])"
_BEGIN_WITH = """
UPDATE sandboxes SET policy = $2, policy_secrets = $3, proxy_password = $4, proxy_password_key = $5 WHERE id = $1"""
_WRITE = """
UPDATE sandboxes
   SET policy = $3, policy_secrets = $4, policy_generation = policy_generation + 1,
       secrets_generation = secrets_generation + 1, e2b = coalesce($5, e2b),
       proxy_password = CASE WHEN $5 IS NULL THEN proxy_password ELSE $6 END,
       proxy_password_key = CASE WHEN $5 IS NULL THEN proxy_password_key ELSE $7 END
 WHERE project_id = $1 AND id = $2 AND desired <> 'deleted' AND state <> 'deleted'
RETURNING id"""
_CEILING = "SELECT ceiling FROM projects WHERE id = $1"
_SET_CEILING = "UPDATE projects SET ceiling = $2 WHERE id = $1"
_RAISE_ALL = """
UPDATE sandboxes SET policy_generation = policy_generation + 1
 WHERE project_id = $1 AND state NOT IN ('deleting', 'deleted') RETURNING id"""
_RAISE_SECRETS = """
UPDATE sandboxes SET secrets_generation = secrets_generation + 1
 WHERE project_id = $1 AND policy_secrets @> ARRAY[$2] AND state NOT IN ('deleting', 'deleted') RETURNING id"""
_MARK = """
UPDATE sandboxes SET policy_applied = greatest(policy_applied, $2), secrets_applied = greatest(secrets_applied, $3)
 WHERE id = $1"""
_OTHER_KEYS = f"""
SELECT {_COLUMNS} FROM sandboxes s JOIN projects p ON p.id = s.project_id
 WHERE s.proxy_password_key <> $1 AND s.id > $2 ORDER BY s.id LIMIT $3"""
_RESEAL = """
UPDATE sandboxes SET proxy_password = $3, proxy_password_key = $4 WHERE id = $1 AND proxy_password = $2"""
_UNAPPLIED = """
SELECT id FROM sandboxes
 WHERE (policy_applied < policy_generation OR secrets_applied < secrets_generation)
   AND state IN ('running', 'paused') AND worker IS NOT NULL
 ORDER BY updated_at LIMIT $1"""


def _egress(row: Record) -> SandboxEgress:
    return SandboxEgress(
        sandbox=SandboxId(row["id"]),
        project=ProjectId(row["project_id"]),
        state=State(row["state"]),
        worker=None if row["worker"] is None else WorkerId(row["worker"]),
        document=row["policy"],
        secrets=tuple(row["policy_secrets"]),
        ceiling=row["ceiling"],
        generations=Generations(row["policy_generation"], row["secrets_generation"]),
        applied=Generations(row["policy_applied"], row["secrets_applied"]),
        password=_password(row),
    )


def _password(row: Record) -> Sealed | None:
    return None if row["proxy_password"] is None else Sealed(row["proxy_password_key"], row["proxy_password"])


async def get(db: Queries, sandbox: SandboxId) -> SandboxEgress | None:
    """Return what may leave a sandbox; None where there is no row."""
    row = await db.fetchrow(_GET, sandbox)
    return None if row is None else _egress(row)


async def by_ids(db: Queries, ids: Collection[SandboxId]) -> dict[SandboxId, SandboxEgress]:
    """Return the same for those of these sandboxes that have a row."""
    found = (_egress(row) for row in await db.fetch(_BY_IDS, list(ids)))
    return {egress.sandbox: egress for egress in found}


async def begin_with(
    tx: Queries, sandbox: SandboxId, document: Document, secrets: Collection[str], password: Sealed | None
) -> None:
    """Give a sandbox that was inserted in this transaction its first policy; `secrets` are the names it binds."""
    await tx.execute(_BEGIN_WITH, sandbox, dict(document), sorted(secrets), *_columns(password))


def _columns(password: Sealed | None) -> tuple[bytes | None, str | None]:
    return (None, None) if password is None else (password.data, password.key_id)


async def write(
    tx: Queries,
    project: ProjectId,
    sandbox: SandboxId,
    document: Document,
    secrets: Collection[str],
    e2b: Document | None = None,
    password: Sealed | None = None,
) -> bool:
    """Replace a policy and raise its generations; False where the project has no such sandbox any more.

    `e2b` is how a client of E2B said it, which it reads back; None leaves what was said before, and the password.
    """
    said = None if e2b is None else dict(e2b)
    own = _columns(password)
    return await tx.fetchrow(_WRITE, project, sandbox, dict(document), sorted(secrets), said, *own) is not None


async def ceiling(db: Queries, project: ProjectId) -> Document | None:
    """Return a project's ceiling; None: it has none."""
    row = await db.fetchrow(_CEILING, project)
    found: Document | None = None if row is None else row["ceiling"]
    return found


async def set_ceiling(tx: Queries, project: ProjectId, document: Document | None) -> list[SandboxId]:
    """Replace a project's ceiling; returns its sandboxes, all of which now lag."""
    await tx.execute(_SET_CEILING, project, None if document is None else dict(document))
    return [SandboxId(row["id"]) for row in await tx.fetch(_RAISE_ALL, project)]


async def raise_secrets(tx: Queries, project: ProjectId, name: str) -> list[SandboxId]:
    """Let all sandboxes lag whose policy binds a secret that has changed, and return them."""
    return [SandboxId(row["id"]) for row in await tx.fetch(_RAISE_SECRETS, project, name)]


async def mark_applied(db: Queries, sandbox: SandboxId, applied: Generations) -> None:
    """Record what a worker goes by now."""
    await db.execute(_MARK, sandbox, applied.policy, applied.secrets)


async def unapplied(db: Queries, limit: int) -> list[SandboxId]:
    """Return awake sandboxes whose worker is not known to go by the newest, longest untouched first."""
    return [SandboxId(row["id"]) for row in await db.fetch(_UNAPPLIED, limit)]


async def under_other_keys(db: Queries, key_id: str, after: str, limit: int) -> list[SandboxEgress]:
    """Return sandboxes whose password was sealed with another master key, by id after one of them."""
    return [_egress(row) for row in await db.fetch(_OTHER_KEYS, key_id, after, limit)]


async def reseal(db: Queries, sandbox: SandboxId, former: Sealed, sealed: Sealed) -> None:
    """Replace the sealed form of a sandbox's password; nothing happens where it has another by now."""
    await db.execute(_RESEAL, sandbox, former.data, sealed.data, sealed.key_id)
