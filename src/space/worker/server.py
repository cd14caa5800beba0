"""The worker's HTTP API (see wire/worker.py for what each call means)."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import FastAPI, Path, Response
from fastapi.responses import StreamingResponse

from space.image import build, catalog
from space.model.errors import SpaceError
from space.model.ids import SandboxId, TemplateDigest
from space.settings import WorkerSettings
from space.wire.serving import answer_with_problems
from space.wire.worker import (
    BuildTemplate,
    SandboxFact,
    StartSandbox,
    TemplateModel,
    WorkerInfo,
    error_line,
)
from space.worker.fleet import Fleet
from space.worker.host import Host

NDJSON = "application/x-ndjson"
Id = Annotated[str, Path(pattern=r"^[a-z0-9]{20}$")]


def create_app(host: Host, fleet: Fleet, settings: WorkerSettings, worker_id: str, worker_boot: str) -> FastAPI:
    """Return the application over a fleet."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    answer_with_problems(app)
    _add_sandboxes(app, fleet)
    _add_templates(app, host, settings)

    @app.get("/v1/worker")
    async def info() -> WorkerInfo:
        return WorkerInfo(
            worker_id=worker_id,
            boot_id=worker_boot,
            driver=host.driver.name,
            accelerator=host.driver.accelerator,
            vmm_version=host.driver.version,
            memory_mib=fleet.memory_mib,
            memory_free_mib=fleet.memory_free_mib,
        )

    return app


def _add_sandboxes(app: FastAPI, fleet: Fleet) -> None:
    @app.put("/v1/sandboxes/{sandbox}")
    async def start(sandbox: Id, wish: StartSandbox) -> SandboxFact:
        return await fleet.start(SandboxId(sandbox), wish)

    @app.get("/v1/sandboxes")
    async def sandboxes() -> list[SandboxFact]:
        return fleet.list()

    @app.delete("/v1/sandboxes/{sandbox}", status_code=204)
    async def delete(sandbox: Id, epoch: int) -> Response:
        await fleet.delete(SandboxId(sandbox), epoch)
        return Response(status_code=204)

    @app.get("/v1/watch")
    async def watch() -> StreamingResponse:
        async def lines() -> AsyncGenerator[str]:
            async for fact in fleet.facts.watch():
                yield fact.model_dump_json() + "\n"

        return StreamingResponse(lines(), media_type=NDJSON)


def _add_templates(app: FastAPI, host: Host, settings: WorkerSettings) -> None:
    @app.post("/v1/templates")
    async def build_template(wish: BuildTemplate) -> StreamingResponse:
        return StreamingResponse(_build_lines(host, settings, wish), media_type=NDJSON)

    @app.get("/v1/templates")
    async def templates() -> list[TemplateModel]:
        return [TemplateModel.of(template) for template in catalog.templates(host.layout)]

    @app.delete("/v1/templates/{digest}", status_code=204)
    async def delete_template(digest: str) -> Response:
        catalog.remove(host.layout, TemplateDigest(digest))
        return Response(status_code=204)


async def _build_lines(host: Host, settings: WorkerSettings, wish: BuildTemplate) -> AsyncGenerator[str]:
    vmm = f"{host.driver.name} {host.driver.version} {host.driver.accelerator}"
    try:
        async with contextlib.aclosing(build.build(host.layout, wish, code_dir=settings.code_dir, vmm=vmm)) as found:
            async for line in found:
                yield line.model_dump_json() + "\n"
    except SpaceError as error:
        yield error_line(error).model_dump_json() + "\n"
