"""Templates on the worker's API, and the log of building one by a recipe."""

import datetime
from typing import Annotated, Literal

import pydantic

from space.model.errors import SpaceError
from space.model.ids import TemplateDigest
from space.model.template import DEFAULT_DISK_MIB, Template, TemplateKind


class BuildTemplate(pydantic.BaseModel):
    """What to build, by the recipe `recipe` (None: that of the name, else `base`); `force` builds again in any case."""

    name: str
    recipe: str | None = None
    disk_mib: int = pydantic.Field(default=DEFAULT_DISK_MIB, ge=1024, le=1024 * 1024)
    force: bool = False


class TemplateModel(pydantic.BaseModel):
    """A template on the wire; see model.template.Template."""

    digest: str
    name: str
    disk_mib: int
    used_bytes: int
    kernel_release: str
    agent_version: str
    vmm: str
    built_at: datetime.datetime
    build_s: float
    kind: TemplateKind = TemplateKind.BUILT
    sandbox: str | None = None
    memory: bool = False
    vcpus: int | None = None
    memory_mib: int | None = None

    @classmethod
    def of(cls, template: Template) -> "TemplateModel":
        """Return the wire form of a template."""
        return cls(**{name: getattr(template, name) for name in cls.model_fields})

    def to_template(self) -> Template:
        """Return the model object."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return Template(**(values | {"digest": TemplateDigest(self.digest)}))


class BuildLog(pydantic.BaseModel):
    """A line of a build's log."""

    type: Literal["log"] = "log"
    at_s: float
    """Seconds since the build began."""
    step: str
    text: str


class BuildDone(pydantic.BaseModel):
    """The build's end. `cached` tells that nothing had to be done."""

    type: Literal["done"] = "done"
    template: TemplateModel
    cached: bool


class BuildFailedLine(pydantic.BaseModel):
    """The build's end, when it failed."""

    type: Literal["failed"] = "failed"
    code: str
    detail: str


BuildLine = Annotated[BuildLog | BuildDone | BuildFailedLine, pydantic.Field(discriminator="type")]
BUILD: pydantic.TypeAdapter[BuildLog | BuildDone | BuildFailedLine] = pydantic.TypeAdapter(BuildLine)


def error_line(error: SpaceError) -> BuildFailedLine:
    """Return the last line of a build that failed with `error`."""
    return BuildFailedLine(code=error.slug, detail=str(error))
