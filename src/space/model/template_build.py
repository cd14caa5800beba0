"""A template as its users know it: a name with tags, and the builds behind them."""

import dataclasses
import datetime
import enum
import re
import uuid
from collections.abc import Mapping

from space.model.errors import InvalidArgument
from space.model.ids import ProjectId, TemplateDigest, WorkerId, is_template_name

DEFAULT_TAG = "default"
_TAG = re.compile(r"[a-z0-9_.-]{1,128}")


class BuildStatus(enum.StrEnum):
    """Where a build is; `waiting` also while nobody has said yet what to build."""

    WAITING = "waiting"
    BUILDING = "building"
    READY = "ready"
    ERROR = "error"


FINISHED = frozenset({BuildStatus.READY, BuildStatus.ERROR})


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateBuild:
    """One build. `wish` is what to build, as the surface said it; `reason_step` is where it failed."""

    id: uuid.UUID
    project: ProjectId
    template_id: str
    name: str
    tags: tuple[str, ...]
    vcpus: int
    memory_mib: int
    min_free_mib: int
    worker: WorkerId | None
    wish: Mapping[str, object] | None
    status: BuildStatus
    digest: TemplateDigest | None
    reason: str | None
    reason_code: str | None
    reason_step: str | None
    created_at: datetime.datetime
    updated_at: datetime.datetime
    finished_at: datetime.datetime | None


@dataclasses.dataclass(frozen=True, slots=True)
class BuildLine:
    """A line of a build's log; `number` counts from 0."""

    number: int
    at: datetime.datetime
    step: str
    level: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class NamedTemplate:
    """A name. `digest` and `build` are what its tag `default` stands for; None before its first success.

    `newest` is its newest build, whatever became of it; None for one that was built otherwise. `spawned`: sandboxes of
    `digest` that are there or were until lately, and `spawned_at` when the last was made.
    """

    id: str
    project: ProjectId
    name: str
    public: bool
    digest: TemplateDigest | None
    build: uuid.UUID | None
    created_at: datetime.datetime
    updated_at: datetime.datetime
    builds: int
    newest: uuid.UUID | None
    newest_status: BuildStatus | None
    vcpus: int | None
    memory_mib: int | None
    disk_mib: int | None
    spawned: int
    spawned_at: datetime.datetime | None


@dataclasses.dataclass(frozen=True, slots=True)
class Tag:
    """A tag of a name. `build` is None where what it stands for was not built from steps."""

    tag: str
    digest: TemplateDigest
    build: uuid.UUID | None
    tagged_at: datetime.datetime


def split_reference(text: str) -> tuple[str, str, str | None]:
    """Return project ("" for none), name and tag of a reference; raises InvalidArgument."""
    return text.rpartition("/")[0], *read_reference(text)


def read_reference(text: str) -> tuple[str, str | None]:
    """Return name and tag of `name`, `name:tag` or, without its project, `project/name:tag`; raises InvalidArgument."""
    name, colon, tag = text.rpartition("/")[2].partition(":")
    if not is_template_name(name):
        raise InvalidArgument(
            f"{name[:80]!r} cannot name a template: use 1 to 63 characters of a-z, 0-9, '.', '_' and '-', beginning "
            "and ending with a letter or digit, and a tag behind a colon if you like."
        )
    if colon:
        check_tag(tag)
    return name, tag if colon else None


def check_tag(tag: str) -> None:
    """Raise InvalidArgument for what is no tag."""
    if not _TAG.fullmatch(tag):
        raise InvalidArgument(f"{tag[:80]!r} is no tag: use 1 to 128 characters of a-z, 0-9, '_', '.' and '-'.")
