"""`/sandboxes/metrics` and `/sandboxes/{id}/metrics`: what sandboxes use."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from space.control import usage
from space.control.plane import Plane
from space.e2b.answers import Json
from space.e2b.request import project_of, sandbox_id
from space.model.errors import InvalidArgument
from space.model.ids import SandboxId, is_id
from space.wire.worker import UsageSample

MAX_AT_ONCE = 100


def add_routes(app: FastAPI, plane: Plane) -> None:
    """Add the routes over `plane`; before those of `/sandboxes/{id}`, which `metrics` is none of."""

    @app.get("/sandboxes/metrics")
    async def show_many(request: Request) -> Response:
        """Show what several sandboxes use now."""
        given = [part for text in request.query_params.getlist("sandbox_ids") for part in text.split(",") if part]
        if len(given) > MAX_AT_ONCE:
            raise InvalidArgument(f"sandbox_ids: at most {MAX_AT_ONCE}.")
        wanted = {SandboxId(ident) for ident in given if is_id(ident)}
        found = await usage.now(plane, project_of(request), wanted)
        return JSONResponse({"sandboxes": {ident: _shown(sample) for ident, sample in found.items()}})

    @app.get("/sandboxes/{ident}/metrics")
    async def show(request: Request, ident: str, start: int = 0, end: int | None = None) -> Response:
        """Show what a sandbox used from `start` to `end`, in seconds since 1970; at most the last hour."""
        if end is not None and end < start:
            raise InvalidArgument("end must not be before start.")
        found = await usage.lately(plane, project_of(request), sandbox_id(ident))
        meant = [one for one in found if start <= one.at.timestamp() and (end is None or one.at.timestamp() < end + 1)]
        return JSONResponse([_shown(one) for one in meant])


def _shown(sample: UsageSample) -> Json:
    return {
        "timestamp": sample.at.isoformat(),
        "timestampUnix": int(sample.at.timestamp()),
        "cpuCount": sample.cpu_count,
        "cpuUsedPct": sample.cpu_used_pct,
        "memUsed": sample.mem_used,
        "memTotal": sample.mem_total,
        "memCache": sample.mem_cache,
        "diskUsed": sample.disk_used,
        "diskTotal": sample.disk_total,
    }
