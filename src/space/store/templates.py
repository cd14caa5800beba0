"""Templates that a project has built, and the names that point to them."""

from collections.abc import Collection, Mapping

from space.model.ids import ProjectId, SandboxId, TemplateDigest
from space.model.template import Template, TemplateKind
from space.model.template_build import DEFAULT_TAG
from space.store.db import Queries, Record

_COLUMNS = """
digest, name, disk_mib, used_bytes, kernel_release, agent_version, vmm, built_at, build_s, kind, sandbox_id, memory,
vcpus, memory_mib"""


def _called(name: str) -> str:
    """Return the columns with `name`, an expression, as the name; where that is null, the one it was built under."""
    return _COLUMNS.replace("digest, name", f"digest, coalesce({name}, name) AS name")


_ADD = f"""
INSERT INTO templates (project_id, {_COLUMNS})
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT (project_id, digest) DO UPDATE
   SET name = excluded.name, used_bytes = excluded.used_bytes, built_at = excluded.built_at, build_s = excluded.build_s
"""
_NAME = """
INSERT INTO template_names (project_id, name, digest) VALUES ($1, $2, $3)
ON CONFLICT (project_id, name) DO UPDATE
   SET digest = excluded.digest, build_id = NULL, tagged_at = now(), updated_at = now()"""
_FIND = f"""
WITH named AS (
    SELECT name, digest FROM template_names
     WHERE project_id = $1 AND (name = $2 OR id = $2) ORDER BY name = $2 DESC LIMIT 1)
SELECT {_called("CASE WHEN $3 = 'default' THEN (SELECT name FROM named) END")} FROM templates
 WHERE project_id = $1
   AND digest = coalesce(
       CASE WHEN $3 = 'default' THEN (SELECT digest FROM named)
            ELSE (SELECT g.digest FROM template_tags g JOIN named ON named.name = g.name
                   WHERE g.project_id = $1 AND g.tag = $3) END, $2)"""
_FIND_PUBLIC = f"""
SELECT {_COLUMNS} FROM templates
 WHERE (project_id, digest) = (
    SELECT n.project_id,
           CASE WHEN $3 = 'default' THEN n.digest
                ELSE (SELECT g.digest FROM template_tags g
                       WHERE g.project_id = n.project_id AND g.name = n.name AND g.tag = $3) END
      FROM template_names n JOIN projects p ON p.id = n.project_id
     WHERE n.public AND CASE WHEN $1 = '' THEN n.id = $2 ELSE n.name = $2 AND $1 IN (p.id, p.name) END
     ORDER BY p.id = $1 DESC LIMIT 1)"""
_LIST = f"""
SELECT {_called("named.called")} FROM templates t
  LEFT JOIN LATERAL (SELECT n.name AS called FROM template_names n
                      WHERE n.project_id = t.project_id AND n.digest = t.digest) named ON true
 WHERE project_id = $1 AND kind = ANY($2::text[]) ORDER BY built_at DESC, digest, name"""
# Another project's sandbox counts where no other project has the digest: it started from what $1 has made public.
_USED = """
SELECT 1 FROM sandboxes
 WHERE template = $2 AND state NOT IN ('failed', 'deleting', 'deleted')
   AND (project_id = $1 OR NOT EXISTS (SELECT 1 FROM templates o WHERE o.project_id <> $1 AND o.digest = $2)) LIMIT 1"""
_DELETE = "DELETE FROM templates WHERE project_id = $1 AND digest = $2"
_UNKNOWN = """
SELECT held.digest FROM unnest($1::text[], $2::text[]) AS held(digest, sandbox)
 WHERE NOT EXISTS (SELECT 1 FROM templates t WHERE t.digest = held.digest)
   AND NOT EXISTS (SELECT 1 FROM operations o
                    WHERE o.sandbox_id = held.sandbox AND o.kind = 'snapshot' AND o.status = 'running')"""
_OTHERS = "SELECT 1 FROM templates WHERE project_id <> $1 AND digest = $2 LIMIT 1"


def _template(row: Record) -> Template:
    return Template(
        digest=TemplateDigest(row["digest"]),
        name=row["name"],
        disk_mib=row["disk_mib"],
        used_bytes=row["used_bytes"],
        kernel_release=row["kernel_release"],
        agent_version=row["agent_version"],
        vmm=row["vmm"],
        built_at=row["built_at"],
        build_s=row["build_s"],
        kind=TemplateKind(row["kind"]),
        sandbox=None if row["sandbox_id"] is None else SandboxId(row["sandbox_id"]),
        memory=row["memory"],
        vcpus=row["vcpus"],
        memory_mib=row["memory_mib"],
    )


async def record(tx: Queries, project: ProjectId, template: Template) -> None:
    """Record a built template and let its name point to it. Run it in a transaction."""
    await add(tx, project, template)
    await tx.execute(_NAME, project, template.name, template.digest)


async def add(tx: Queries, project: ProjectId, template: Template) -> None:
    """Record a built template, whatever it is called."""
    t = template
    built = (
        t.digest,
        t.name,
        t.disk_mib,
        t.used_bytes,
        t.kernel_release,
        t.agent_version,
        t.vmm,
        t.built_at,
        t.build_s,
        t.kind,
        t.sandbox,
        t.memory,
        t.vcpus,
        t.memory_mib,
    )
    await tx.execute(_ADD, project, *built)


async def find(db: Queries, project: ProjectId, name_or_digest: str, tag: str = DEFAULT_TAG) -> Template | None:
    """Return the project's template with this digest, or of this name (or the name's id) and tag; called so."""
    row = await db.fetchrow(_FIND, project, name_or_digest, tag)
    return None if row is None else _template(row)


async def find_public(db: Queries, space: str, name_or_id: str, tag: str = DEFAULT_TAG) -> Template | None:
    """Return a public template of any project: of this name in the project `space` (its id or name), or, where that is
    empty, the one whose name has this id.
    """
    row = await db.fetchrow(_FIND_PUBLIC, space, name_or_id, tag)
    return None if row is None else _template(row)


async def listed(
    db: Queries, project: ProjectId, kinds: Collection[TemplateKind] = frozenset(TemplateKind)
) -> list[Template]:
    """Return the project's templates of these kinds, newest first; one that several names stand for under each."""
    return [_template(row) for row in await db.fetch(_LIST, project, list(kinds))]


async def in_use(db: Queries, project: ProjectId, digest: TemplateDigest) -> bool:
    """Tell whether a live sandbox started from what the project has of it."""
    return await db.fetchrow(_USED, project, digest) is not None


async def shared(db: Queries, project: ProjectId, digest: TemplateDigest) -> bool:
    """Tell whether another project has this digest too."""
    return await db.fetchrow(_OTHERS, project, digest) is not None


async def remove(db: Queries, project: ProjectId, digest: TemplateDigest) -> None:
    """Forget it and its names."""
    await db.execute(_DELETE, project, digest)


async def unknown(db: Queries, snapshots: Mapping[TemplateDigest, SandboxId]) -> list[TemplateDigest]:
    """Return those of these snapshots, each with what it was taken of, that no project has nor is about to have."""
    rows = await db.fetch(_UNKNOWN, list(snapshots.keys()), list(snapshots.values()))
    return [TemplateDigest(row["digest"]) for row in rows]
