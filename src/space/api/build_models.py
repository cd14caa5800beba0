"""What the `/v1` surface reads and writes about builds of templates."""

import datetime
import uuid
from typing import Literal

import pydantic
from pydantic.config import JsonDict

from space.model.build import MAX_COMMAND_BYTES, MAX_STEPS
from space.model.sandbox import MAX_MEMORY_MIB, MAX_VCPUS, MIN_MEMORY_MIB
from space.model.template_build import BuildLine, BuildStatus, TemplateBuild
from space.wire.builds import StepModel

_TEXT: JsonDict = {"type": "string", "pattern": "^[^\\x00]*$", "maxLength": MAX_COMMAND_BYTES}


class _Request(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class TemplateStep(_Request):
    """A step of a build."""

    kind: Literal["RUN", "COPY", "ENV", "WORKDIR", "USER"]
    args: list[str] = pydantic.Field(
        max_length=2000,
        description="RUN: command, user. COPY: source, target, owner, mode. ENV: names and values. Else one argument.",
    )
    files: str | None = pydantic.Field(
        default=None, pattern="^[0-9a-f]{64}$", description="Of COPY: SHA-256 of the archive at /v1/template-files."
    )
    force: bool = pydantic.Field(default=False, description="Do it again although a layer of it is kept.")

    def model(self) -> StepModel:
        """Return it as a worker reads it."""
        return StepModel(kind=self.kind, args=self.args, files=self.files, force=self.force)


class RegistryLogin(_Request):
    """Who pulls the image."""

    username: str = pydantic.Field(min_length=1, max_length=256)
    password: pydantic.SecretStr = pydantic.Field(min_length=1, max_length=65536)


class CreateTemplateBuild(_Request):
    """A template to build from steps."""

    name: str = pydantic.Field(max_length=256, description="`name` or `name:tag`; the tag `default` is meant by none.")
    tags: list[str] = pydantic.Field(default=[], max_length=100, description="More tags for it.")
    source: str = pydantic.Field(
        min_length=1, max_length=512, description="A template of the project, or else an image of a registry."
    )
    registry: RegistryLogin | None = None
    steps: list[TemplateStep] = pydantic.Field(default=[], max_length=MAX_STEPS)
    start: str | None = pydantic.Field(
        default=None, json_schema_extra=_TEXT, description="Command that is started at each boot."
    )
    ready: str | None = pydantic.Field(
        default=None, json_schema_extra=_TEXT, description="Command that succeeds once it is ready."
    )
    vcpus: int | None = pydantic.Field(default=None, ge=1, le=MAX_VCPUS)
    memory_mib: int | None = pydantic.Field(default=None, ge=MIN_MEMORY_MIB, le=MAX_MEMORY_MIB)
    force: bool = pydantic.Field(default=False, description="Do every step again.")


class TemplateBuildLine(pydantic.BaseModel):
    """A line of a build's log."""

    number: int
    at: datetime.datetime
    step: str
    level: str
    text: str


class TemplateBuildModel(pydantic.BaseModel):
    """A build. `digest` is what it made; `reason` and `reason_step` say why it ended with `error`."""

    id: uuid.UUID
    name: str
    tags: list[str]
    status: BuildStatus
    digest: str | None
    reason: str | None
    reason_code: str | None
    reason_step: str | None
    vcpus: int
    memory_mib: int
    created_at: datetime.datetime
    finished_at: datetime.datetime | None
    lines: list[TemplateBuildLine]

    @classmethod
    def of(cls, build: TemplateBuild, lines: list[BuildLine]) -> "TemplateBuildModel":
        """Return the public form."""
        fields = {name: getattr(build, name) for name in cls.model_fields if name not in ("lines", "tags")}
        said = [
            TemplateBuildLine(**{name: getattr(line, name) for name in TemplateBuildLine.model_fields})
            for line in lines
        ]
        return cls(**fields, tags=list(build.tags), lines=said)


class StoredTemplateFiles(pydantic.BaseModel):
    """An archive that is here."""

    sha256: str
    size_bytes: int
