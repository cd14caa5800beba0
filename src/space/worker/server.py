"""The worker's HTTP API (see wire/worker.py for what each call means)."""

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import FastAPI, Path, Response
from fastapi.responses import StreamingResponse

from space.image import build, catalog
from space.model.errors import SpaceError
from space.model.ids import SandboxId, TemplateDigest
from space.settings import WorkerSettings
from space.wire.gateway import AskAnswer, Authority, EgressOrder, SecretsOrder
from space.wire.serving import answer_with_problems
from space.wire.templates import BuildDone, BuildLog, BuildTemplate, TemplateModel, error_line
from space.wire.worker import (
    Activity,
    SandboxFact,
    Usage,
    WorkerInfo,
)
from space.worker import build_routes, order_routes, trust, volume_routes
from space.worker.assembly import Worker
from space.worker.fleet import Fleet
from space.worker.shelf import default_shape

NDJSON = "application/x-ndjson"
Id = Annotated[str, Path(pattern=r"^[a-z0-9]{20}$")]


def create_app(worker: Worker, settings: WorkerSettings, worker_id: str, worker_boot: str) -> FastAPI:
    """Return the application over a worker's parts."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    answer_with_problems(app)
    _add_sandboxes(app, worker.fleet)
    _add_uses(app, worker.fleet)
    _add_templates(app, worker, settings)
    _add_egress(app, worker)
    order_routes.add_routes(app, worker.fleet)
    build_routes.add_routes(app, worker.builder)
    volume_routes.add_routes(app, worker.host.volumes)

    @app.get("/v1/worker")
    async def info() -> WorkerInfo:
        return WorkerInfo(
            worker_id=worker_id,
            boot_id=worker_boot,
            driver=worker.host.driver.name,
            accelerator=worker.host.driver.accelerator,
            vmm_version=worker.host.driver.version,
            memory_mib=worker.admission.memory_mib,
            memory_free_mib=worker.admission.free_mib,
            authority=trust.describe(authority) if (authority := worker.host.link.authority) else None,
        )

    return app


def _add_sandboxes(app: FastAPI, fleet: Fleet) -> None:
    @app.get("/v1/sandboxes")
    async def sandboxes() -> list[SandboxFact]:
        return fleet.told()

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


def _add_uses(app: FastAPI, fleet: Fleet) -> None:
    @app.get("/v1/sandboxes/{sandbox}/activity")
    async def activity(sandbox: Id) -> Activity:
        return await fleet.activity(SandboxId(sandbox))

    @app.get("/v1/sandboxes/{sandbox}/usage")
    async def usage(sandbox: Id) -> Usage:
        return await fleet.usage(SandboxId(sandbox))


def _add_egress(app: FastAPI, worker: Worker) -> None:
    link = worker.host.link

    @app.put("/v1/sandboxes/{sandbox}/egress", status_code=204)
    async def put_egress(sandbox: Id, order: EgressOrder) -> Response:
        await worker.fleet.put_egress(SandboxId(sandbox), order)
        return Response(status_code=204)

    @app.put("/v1/sandboxes/{sandbox}/secrets", status_code=204)
    async def put_secrets(sandbox: Id, order: SecretsOrder) -> Response:
        await worker.fleet.put_secrets(SandboxId(sandbox), order)
        return Response(status_code=204)

    @app.put("/v1/sandboxes/{sandbox}/asks/{ask}", status_code=204)
    async def answer_ask(sandbox: Id, ask: int, answer: AskAnswer) -> Response:
        await link.client.answer_ask(SandboxId(sandbox), ask, answer)
        return Response(status_code=204)

    @app.post("/v1/rotations/{secret}/stored", status_code=204)
    async def rotation_stored(secret: Id, value: str) -> Response:
        await link.rotation_stored(secret, value)
        return Response(status_code=204)

    @app.put("/v1/authority", status_code=204)
    async def put_authority(authority: Authority) -> Response:
        trust.describe(authority)
        await link.put_authority(authority)
        worker.host.root.keep(authority.root)
        return Response(status_code=204)

    @app.get("/v1/egress")
    async def events(boot: str = "", after: int = 0) -> StreamingResponse:
        return StreamingResponse(worker.relay.lines(boot, after), media_type=NDJSON)


def _add_templates(app: FastAPI, worker: Worker, settings: WorkerSettings) -> None:
    layout = worker.host.layout

    @app.post("/v1/templates")
    async def build_template(wish: BuildTemplate) -> StreamingResponse:
        return StreamingResponse(_build_lines(worker, settings, wish), media_type=NDJSON)

    @app.get("/v1/templates")
    async def templates() -> list[TemplateModel]:
        return [TemplateModel.of(template) for template in catalog.templates(layout)]

    @app.delete("/v1/templates/{digest}", status_code=204)
    async def delete_template(digest: str) -> Response:
        await worker.stock.shelf.remove(TemplateDigest(digest))
        catalog.remove(layout, TemplateDigest(digest))
        return Response(status_code=204)


async def _build_lines(worker: Worker, settings: WorkerSettings, wish: BuildTemplate) -> AsyncGenerator[str]:
    began = time.monotonic()

    def line(text: str) -> str:
        at_s = round(time.monotonic() - began, 3)
        return BuildLog(at_s=at_s, step="snapshot", text=text).model_dump_json() + "\n"

    build_it = build.build(worker.host.layout, wish, code_dir=settings.code_dir, vmm=worker.host.vmm)
    try:
        async with contextlib.aclosing(build_it) as found:
            async for step in found:
                if isinstance(step, BuildDone):
                    yield line("Begins: booting, warming and freezing it.")
                    await worker.stock.shelf.make(step.template.digest)
                    worker.stock.spares.want(default_shape(step.template.digest))
                    yield line("Done.")
                yield step.model_dump_json() + "\n"
    except SpaceError as error:
        yield error_line(error).model_dump_json() + "\n"
