"""A worker's socket that builds as a test tells it to: where the control plane's side of builds is tested.

The worker's own side is tested with a real one.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from tests.support.rows import DIGEST

from space.wire.builds import BuildSteps, StepLine, StepLog, StepsDone, StepsFailed
from space.wire.serving import bind_unix, server
from space.wire.templates import TemplateModel


class Build:
    """One build that the worker was asked for. What is put into it goes to whoever reads it; None breaks it off."""

    def __init__(self, wish: BuildSteps) -> None:
        self.wish = wish
        self.left = asyncio.Event()
        """Set when its reader has left before its end."""
        self.lines: asyncio.Queue[StepLine | None] = asyncio.Queue()

    def say(self, text: str, step: str = "1", level: str = "info") -> None:
        line = {"at": dt.datetime.now(dt.UTC), "step": step, "level": level, "text": text}
        self.lines.put_nowait(StepLog.model_validate(line))

    def succeed(self, digest: str = DIGEST) -> None:
        model = TemplateModel(
            digest=digest, name=self.wish.name, disk_mib=10240, used_bytes=1, kernel_release="6.1", agent_version="1",
            vmm="qemu", built_at=dt.datetime.now(dt.UTC), build_s=1, vcpus=self.wish.vcpus,
            memory_mib=self.wish.memory_mib,
        )  # fmt: skip
        self.lines.put_nowait(StepsDone(template=model, cached=False))

    def fail(self, detail: str, step: str = "1") -> None:
        self.lines.put_nowait(StepsFailed(code="build_failed", detail=detail, step=step))


@dataclasses.dataclass
class BuildWorker:
    """What it was asked: builds in their order, files by (scope, name), templates to delete."""

    builds: "asyncio.Queue[Build]" = dataclasses.field(default_factory=asyncio.Queue)
    files: dict[tuple[str, str], bytes] = dataclasses.field(default_factory=dict)
    deleted: list[str] = dataclasses.field(default_factory=list)

    async def next(self) -> Build:
        """Return the next build that it is asked for."""
        async with asyncio.timeout(30):
            return await self.builds.get()


@contextlib.asynccontextmanager
async def serving(path: Path) -> AsyncIterator[BuildWorker]:
    """Serve at `path`."""
    worker = BuildWorker()
    web = server(_app(worker), grace_s=0)
    with contextlib.closing(bind_unix(path, mode=0o600)) as listening:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(web.serve(sockets=[listening]))
            yield worker
            web.should_exit = True
            await running


def _app(worker: BuildWorker) -> FastAPI:
    app = FastAPI()

    @app.post("/v1/template-builds")
    async def build(wish: BuildSteps) -> Response:
        made = Build(wish)
        worker.builds.put_nowait(made)

        async def lines() -> AsyncGenerator[str]:
            line: StepLine | None = None
            try:
                while not isinstance(line, StepsDone | StepsFailed):
                    line = await made.lines.get()
                    if line is None:
                        return
                    yield line.model_dump_json() + "\n"
            finally:
                if not isinstance(line, StepsDone | StepsFailed):
                    made.left.set()

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    @app.get("/v1/build-files/{scope}/{name}")
    async def stored(scope: str, name: str) -> Response:
        found = worker.files.get((scope, name))
        if found is None:
            problem = {"title": "Not found", "status": 404, "code": "not_found", "detail": "no such files"}
            return JSONResponse(problem, 404, media_type="application/problem+json")
        return JSONResponse({"sha256": hashlib.sha256(found).hexdigest(), "size_bytes": len(found)})

    @app.put("/v1/build-files/{scope}/{name}")
    async def keep(request: Request, scope: str, name: str) -> Response:
        worker.files[scope, name] = await request.body()
        return await stored(scope, name)

    @app.delete("/v1/templates/{digest}")
    async def delete(digest: str) -> Response:
        worker.deleted.append(digest)
        return Response(status_code=204)

    return app
