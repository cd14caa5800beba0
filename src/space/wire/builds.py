"""Template builds on the worker's API: what to build, its log, and the files that its steps copy.

POST   /v1/template-builds                  BuildSteps; NDJSON of StepLine, the last `done` or `failed`; whoever
                                            leaves the stream ends the build, and nothing of it is left
GET    /v1/build-files/{scope}/{name}       StoredFiles, or 404
PUT    /v1/build-files/{scope}/{name}       the body is kept, whole or not at all; `?sha256=` refuses any other
"""

import contextlib
import datetime as dt
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Annotated, Literal

import httpx2
import pydantic

from space.model.build import Step, read_step
from space.model.errors import NotFound, SpaceError, Unavailable
from space.wire.gateway import EgressOrder
from space.wire.problem import raise_for_problem
from space.wire.templates import TemplateModel
from space.wire.worker_client import WorkerClient, in_clear

UPLOAD_S = 3600
MAX_FILES_BYTES = 4 * 1024**3
"""Of one archive."""

_SILENCE_S = 60.0
"""A build says something each few seconds while it is at work."""


class StepModel(pydantic.BaseModel):
    """See model.build.Step."""

    kind: str
    args: list[str]
    files: str | None = None
    force: bool = False

    @classmethod
    def of(cls, step: Step) -> "StepModel":
        """Return the wire form."""
        return cls(kind=step.kind, args=list(step.args), files=step.files, force=step.force)

    def to_step(self) -> Step:
        """Return the model object; raises InvalidArgument."""
        return read_step(self.kind, self.args, self.files, force=self.force)


class RegistryLogin(pydantic.BaseModel):
    """Who pulls an image."""

    username: str
    password: pydantic.SecretStr


class FromTemplate(pydantic.BaseModel):
    """Build on a template of this host."""

    type: Literal["template"] = "template"
    digest: str


class FromImage(pydantic.BaseModel):
    """Build on an image of a registry, for containers."""

    type: Literal["image"] = "image"
    reference: str
    login: RegistryLogin | None = None
    container: bool = False
    """Whether user, directory and command are the image's own, as in a container; else ours, and nothing is started."""


class BuildSteps(pydantic.BaseModel):
    """A build. `scope` (a project) keeps files and layers apart; `egress` is for the machine it runs in."""

    scope: str
    source: Annotated[FromTemplate | FromImage, pydantic.Field(discriminator="type")]
    steps: list[StepModel] = []
    start: str | None = None
    ready: str | None = None
    ready_timeout_s: float = 300
    vcpus: int
    memory_mib: int
    min_free_mib: int = 0
    force: bool = False
    name: str
    egress: EgressOrder | None = None


Level = Literal["debug", "info", "warn", "error"]


class StepLog(pydantic.BaseModel):
    """A line of the log; `step` as in model.build: "base", a number from 1, "finalize"."""

    type: Literal["log"] = "log"
    at: dt.datetime
    step: str
    level: Level = "info"
    text: str


class StepBeat(pydantic.BaseModel):
    """The build is at work."""

    type: Literal["beat"] = "beat"


class StepsDone(pydantic.BaseModel):
    """The template is there, and sandboxes can be cloned from it."""

    type: Literal["done"] = "done"
    template: TemplateModel
    cached: bool


class StepsFailed(pydantic.BaseModel):
    """Nothing was made. `detail` is for the user; `step` is where it failed."""

    type: Literal["failed"] = "failed"
    code: str
    detail: str
    step: str


StepLine = StepLog | StepBeat | StepsDone | StepsFailed
_LINE: pydantic.TypeAdapter[StepLine] = pydantic.TypeAdapter(Annotated[StepLine, pydantic.Field(discriminator="type")])


class StoredFiles(pydantic.BaseModel):
    """An uploaded archive: the SHA-256 of its bytes, in hex, and how many there are."""

    sha256: str
    size_bytes: int


class BuildsClient:
    """The part of a worker's client that is about builds."""

    def __init__(self, worker: WorkerClient) -> None:
        self._worker = worker

    async def build(self, wish: BuildSteps) -> AsyncGenerator[StepLine]:
        """Build; yields the log, beats, and last `done` or `failed`. Leaving it ends the build. Raises Unavailable."""
        last: StepLine | None = None
        lines = self._worker.lines("POST", "/v1/template-builds", in_clear(wish), _SILENCE_S)
        async with contextlib.aclosing(lines) as found:
            async for line in found:
                last = _LINE.validate_json(line)
                yield last
        if not isinstance(last, StepsDone | StepsFailed):
            raise Unavailable("The worker went away during the build; build again.")

    async def files(self, scope: str, name: str) -> StoredFiles | None:
        """Return what the worker has under this name."""
        try:
            answer = await self._worker.call("GET", f"/v1/build-files/{scope}/{name}")
        except NotFound:
            return None
        return StoredFiles.model_validate_json(answer.content)

    async def put_files(
        self, scope: str, name: str, body: AsyncIterable[bytes], sha256: str | None = None
    ) -> StoredFiles:
        """Keep an archive under a name. Raises TooLarge, StorageFull, and InvalidArgument for another digest."""
        path = f"/v1/build-files/{scope}/{name}" + (f"?sha256={sha256}" if sha256 else "")
        try:
            answer = await self._worker.http.put(path, content=body, timeout=httpx2.Timeout(30, read=UPLOAD_S))
        except httpx2.TransportError as error:
            raise Unavailable("The worker did not take the files; it may be restarting. Try again.") from error
        raise_for_problem(answer)
        return StoredFiles.model_validate_json(answer.content)


def failed_line(error: SpaceError, step: str) -> StepsFailed:
    """Return the last line of a build that failed with `error`."""
    return StepsFailed(code=error.slug, detail=str(error), step=step)
