"""What clients read about templates, their builds and tags."""

import uuid

from space.e2b.answers import ENVD_VERSION, Json
from space.model.build import BASE
from space.model.ids import TemplateDigest
from space.model.sandbox import DEFAULT_MEMORY_MIB, DEFAULT_VCPUS
from space.model.template import DEFAULT_DISK_MIB
from space.model.template_build import BuildLine, BuildStatus, NamedTemplate, Tag, TemplateBuild

_DIGESTS = uuid.UUID("6f2c7d1e-52a4-4b9f-8f0e-3b1d5c0a9e77")


def build_id(build: uuid.UUID | None, digest: TemplateDigest | None) -> str:
    """Return the id of a build. Clients want a UUID, so what was not built from steps gets one made of its digest."""
    return str(build or uuid.uuid5(_DIGESTS, digest or ""))


def requested(build: TemplateBuild, *, public: bool) -> Json:
    """Return what the request for a build answers."""
    return {
        "templateID": build.template_id,
        "buildID": str(build.id),
        "public": public,
        "names": [build.name],
        "tags": list(build.tags),
        "aliases": [build.name],
    }


def template(named: NamedTemplate) -> Json:
    """Return a template of a list."""
    status = named.newest_status or BuildStatus.READY
    return {
        "templateID": named.id,
        "buildID": build_id(named.build or named.newest, named.digest),
        "cpuCount": named.vcpus or DEFAULT_VCPUS,
        "memoryMB": named.memory_mib or DEFAULT_MEMORY_MIB,
        "diskSizeMB": named.disk_mib or DEFAULT_DISK_MIB,
        "public": named.public,
        "aliases": [named.name],
        "names": [named.name],
        "createdAt": named.created_at.isoformat(),
        "updatedAt": named.updated_at.isoformat(),
        "createdBy": None,
        "lastSpawnedAt": None if named.spawned_at is None else named.spawned_at.isoformat(),
        "spawnCount": named.spawned,
        "buildCount": named.builds,
        "envdVersion": ENVD_VERSION,
        "buildStatus": status,
    }


def build(row: TemplateBuild) -> Json:
    """Return a build of a template's list."""
    found: Json = {
        "buildID": str(row.id),
        "status": row.status,
        "createdAt": row.created_at.isoformat(),
        "updatedAt": row.updated_at.isoformat(),
        "cpuCount": row.vcpus,
        "memoryMB": row.memory_mib,
        "diskSizeMB": DEFAULT_DISK_MIB,
        "envdVersion": ENVD_VERSION,
    }
    if row.finished_at is not None:
        found["finishedAt"] = row.finished_at.isoformat()
    return found


def status(row: TemplateBuild, lines: list[BuildLine]) -> Json:
    """Return where a build is. `logs` is always empty: it is for the clients of a build that is no more."""
    found: Json = {
        "logs": [],
        "logEntries": [entry(line) for line in lines],
        "templateID": row.template_id,
        "buildID": str(row.id),
        "status": row.status,
    }
    if row.status is BuildStatus.ERROR:
        found["reason"] = {
            "message": row.reason or "The build failed.",
            "step": row.reason_step or BASE,
            "logEntries": [],
        }
    return found


def entry(line: BuildLine) -> Json:
    """Return a line of a log."""
    return {"timestamp": line.at.isoformat(), "message": line.text, "level": line.level, "step": line.step}


def tag(found: Tag) -> Json:
    """Return a tag of a template."""
    return {
        "tag": found.tag,
        "buildID": build_id(found.build, found.digest),
        "createdAt": found.tagged_at.isoformat(),
    }
