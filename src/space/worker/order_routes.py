"""The part of the worker's API that has something done to one sandbox (see wire/worker.py).

Plain routes: what FastAPI does for each request beyond this takes as long as all else that the worker does for a pause.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pydantic
from fastapi import FastAPI, Request
from fastapi.responses import Response

from space.model.errors import InvalidArgument
from space.model.ids import SandboxId, is_id
from space.wire.serving import in_words
from space.wire.templates import TemplateModel
from space.wire.worker import ForkResult, ForkSandbox, Order, SandboxFact, SnapshotSandbox, StartSandbox, SuspendSandbox
from space.worker.fleet import Fleet

W = TypeVar("W", bound=pydantic.BaseModel)
A = TypeVar("A")
_SANDBOX = "/v1/sandboxes/{sandbox}"
_FACT = pydantic.TypeAdapter(SandboxFact)
_FORKS = pydantic.TypeAdapter(list[ForkResult])
_TEMPLATE = pydantic.TypeAdapter(TemplateModel)


def add_routes(app: FastAPI, fleet: Fleet) -> None:
    """Add the routes."""

    async def pause(sandbox: SandboxId, wish: Order) -> SandboxFact:
        return await fleet.pause(sandbox, wish.epoch)

    async def resume(sandbox: SandboxId, wish: Order) -> SandboxFact:
        return await fleet.resume(sandbox, wish.epoch)

    async def snapshot(sandbox: SandboxId, wish: SnapshotSandbox) -> TemplateModel:
        return TemplateModel.of(await fleet.snapshot(sandbox, wish))

    _add(app, "PUT", _SANDBOX, StartSandbox, _FACT, fleet.start)
    _add(app, "POST", f"{_SANDBOX}/pause", Order, _FACT, pause)
    _add(app, "POST", f"{_SANDBOX}/resume", Order, _FACT, resume)
    _add(app, "POST", f"{_SANDBOX}/suspend", SuspendSandbox, _FACT, fleet.suspend)
    _add(app, "POST", f"{_SANDBOX}/restore", StartSandbox, _FACT, fleet.restore)
    _add(app, "POST", f"{_SANDBOX}/fork", ForkSandbox, _FORKS, fleet.fork)
    _add(app, "POST", f"{_SANDBOX}/snapshots", SnapshotSandbox, _TEMPLATE, snapshot)


def _add(
    app: FastAPI,
    method: str,
    path: str,
    wished: type[W],
    answered: pydantic.TypeAdapter[A],
    act: Callable[[SandboxId, W], Awaitable[A]],
) -> None:
    async def order(request: Request) -> Response:
        sandbox = request.path_params["sandbox"]
        if not is_id(sandbox):
            raise InvalidArgument("sandbox: must be an id, 20 characters of a-z and 0-9.")
        try:
            wish = wished.model_validate_json(await request.body())
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise InvalidArgument(f"{field}: {in_words(first['msg'])}.") from error
        return Response(answered.dump_json(await act(SandboxId(sandbox), wish)), media_type="application/json")

    app.add_route(path, order, methods=[method])
