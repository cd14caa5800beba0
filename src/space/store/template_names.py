"""The names of templates, their tags, and what these stand for. The tag `default` is in the name's own row."""

import uuid
from collections.abc import Sequence

from space.model.ids import ProjectId, TemplateDigest, new_id
from space.model.template_build import DEFAULT_TAG, BuildStatus, NamedTemplate, Tag
from space.store.db import Queries, Record

_COLUMNS = """
n.id, n.project_id, n.name, n.public, n.digest, n.build_id, n.created_at, n.updated_at,
t.vcpus, t.memory_mib, t.disk_mib, last.id AS newest, last.status AS newest_status,
(SELECT count(*) FROM sandboxes s WHERE s.project_id = n.project_id AND s.template = n.digest) AS spawned,
(SELECT max(s.created_at) FROM sandboxes s WHERE s.project_id = n.project_id AND s.template = n.digest) AS spawned_at,
(SELECT count(*) FROM template_builds b WHERE b.project_id = n.project_id AND b.name = n.name) AS builds"""
_FROM = """
  FROM template_names n
  LEFT JOIN templates t ON t.project_id = n.project_id AND t.digest = n.digest
  LEFT JOIN LATERAL (SELECT id, status FROM template_builds b
                      WHERE b.project_id = n.project_id AND b.name = n.name
                      ORDER BY created_at DESC, id LIMIT 1) last ON true"""
_ENSURE = """
INSERT INTO template_names (project_id, name, id) VALUES ($1, $2, $3)
ON CONFLICT (project_id, name) DO UPDATE SET updated_at = now() RETURNING id"""
_FIND = f"SELECT {_COLUMNS} {_FROM} WHERE n.project_id = $1 AND (n.name = $2 OR n.id = $2) ORDER BY n.name = $2 DESC"
_FIND_PUBLIC = f"""
SELECT {_COLUMNS} {_FROM} JOIN projects p ON p.id = n.project_id
 WHERE n.public AND CASE WHEN $1 = '' THEN n.id = $2 ELSE n.name = $2 AND $1 IN (p.id, p.name) END
 ORDER BY p.id = $1 DESC LIMIT 1"""
_LIST = f"""
SELECT {_COLUMNS} {_FROM}
 WHERE n.project_id = $1 AND ($2::text IS NULL OR (n.created_at, n.id) <
       (SELECT created_at, id FROM template_names WHERE project_id = $1 AND id = $2))
   AND (t.kind IS NULL OR t.kind <> 'snapshot')
 ORDER BY n.created_at DESC, n.id DESC LIMIT $3"""
_SET_DEFAULT = """
UPDATE template_names SET digest = $3, build_id = $4, tagged_at = now(), updated_at = now()
 WHERE project_id = $1 AND name = $2"""
_SET_TAG = """
INSERT INTO template_tags (project_id, name, tag, digest, build_id) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (project_id, name, tag) DO UPDATE
   SET digest = excluded.digest, build_id = excluded.build_id, tagged_at = now()"""
_TAGS = """
SELECT 'default' AS tag, digest, build_id, tagged_at FROM template_names
 WHERE project_id = $1 AND name = $2 AND digest IS NOT NULL
UNION ALL
SELECT tag, digest, build_id, tagged_at FROM template_tags WHERE project_id = $1 AND name = $2
 ORDER BY tagged_at DESC, tag"""
_REMOVE_DEFAULT = """
UPDATE template_names SET digest = NULL, build_id = NULL, updated_at = now()
 WHERE project_id = $1 AND name = $2 AND digest IS NOT NULL RETURNING id"""
_REMOVE_TAG = "DELETE FROM template_tags WHERE project_id = $1 AND name = $2 AND tag = $3 RETURNING tag"
_PUBLISH = "UPDATE template_names SET public = $3, updated_at = now() WHERE project_id = $1 AND name = $2"
_DIGESTS = """
SELECT digest FROM template_names WHERE project_id = $1 AND name = $2 AND digest IS NOT NULL
UNION SELECT digest FROM template_tags WHERE project_id = $1 AND name = $2
UNION SELECT b.digest FROM template_builds b JOIN templates t ON t.project_id = b.project_id AND t.digest = b.digest
       WHERE b.project_id = $1 AND b.name = $2"""
_ELSEWHERE = """
SELECT 1 FROM template_names WHERE project_id = $1 AND name <> $2 AND digest = $3
UNION ALL SELECT 1 FROM template_tags WHERE project_id = $1 AND name <> $2 AND digest = $3 LIMIT 1"""
_DELETE = "DELETE FROM template_names WHERE project_id = $1 AND name = $2"


def _named(row: Record) -> NamedTemplate:
    return NamedTemplate(
        id=row["id"],
        project=ProjectId(row["project_id"]),
        name=row["name"],
        public=row["public"],
        digest=None if row["digest"] is None else TemplateDigest(row["digest"]),
        build=row["build_id"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        builds=row["builds"],
        newest=row["newest"],
        newest_status=None if row["newest_status"] is None else BuildStatus(row["newest_status"]),
        vcpus=row["vcpus"],
        memory_mib=row["memory_mib"],
        disk_mib=row["disk_mib"],
        spawned=row["spawned"],
        spawned_at=row["spawned_at"],
    )


async def ensure(tx: Queries, project: ProjectId, name: str) -> str:
    """Return the id of a name, made if there is none."""
    row = await tx.fetchrow(_ENSURE, project, name, new_id())
    assert row is not None
    return str(row["id"])


async def find(db: Queries, project: ProjectId, name_or_id: str) -> NamedTemplate | None:
    """Return what has this name or id; a name goes before an id."""
    row = await db.fetchrow(_FIND, project, name_or_id)
    return None if row is None else _named(row)


async def find_public(db: Queries, space: str, name_or_id: str) -> NamedTemplate | None:
    """Return a public name of any project; as templates.find_public."""
    row = await db.fetchrow(_FIND_PUBLIC, space, name_or_id)
    return None if row is None else _named(row)


async def listed(db: Queries, project: ProjectId, after: str | None, limit: int) -> list[NamedTemplate]:
    """Return the project's names but those of snapshots, newest first, after the one with this id."""
    return [_named(row) for row in await db.fetch(_LIST, project, after, limit)]


async def set_tags(
    tx: Queries, project: ProjectId, name: str, tags: Sequence[str], digest: TemplateDigest, build: uuid.UUID | None
) -> None:
    """Let tags of a name stand for a template from now on."""
    for tag in tags:
        if tag == DEFAULT_TAG:
            await tx.execute(_SET_DEFAULT, project, name, digest, build)
        else:
            await tx.execute(_SET_TAG, project, name, tag, digest, build)


async def tags(db: Queries, project: ProjectId, name: str) -> list[Tag]:
    """Return the tags of a name, the last set first."""
    return [
        Tag(row["tag"], TemplateDigest(row["digest"]), row["build_id"], row["tagged_at"])
        for row in await db.fetch(_TAGS, project, name)
    ]


async def remove_tag(tx: Queries, project: ProjectId, name: str, tag: str) -> bool:
    """Take a tag away; False where there is none. What it stood for stays."""
    if tag == DEFAULT_TAG:
        return await tx.fetchrow(_REMOVE_DEFAULT, project, name) is not None
    return await tx.fetchrow(_REMOVE_TAG, project, name, tag) is not None


async def publish(db: Queries, project: ProjectId, name: str, *, public: bool) -> None:
    """Let other projects use it, or no longer."""
    await db.execute(_PUBLISH, project, name, public)


async def digests(db: Queries, project: ProjectId, name: str) -> list[TemplateDigest]:
    """Return all that the builds and tags of a name have made and that is still there."""
    return [TemplateDigest(row["digest"]) for row in await db.fetch(_DIGESTS, project, name)]


async def named_elsewhere(db: Queries, project: ProjectId, name: str, digest: TemplateDigest) -> bool:
    """Tell whether another name of the project stands for a template."""
    return await db.fetchrow(_ELSEWHERE, project, name, digest) is not None


async def delete(tx: Queries, project: ProjectId, name: str) -> None:
    """Forget a name with its tags, builds and logs."""
    await tx.execute(_DELETE, project, name)
