"""Copies of a sandbox: forks, and snapshots that new ones start from."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from space.control import egress, forks, snapshots
from space.control.lifecycle import Changes
from space.control.plane import Plane
from space.e2b import answers, references
from space.e2b.errors import body_of
from space.e2b.models import Fork, Snapshot
from space.e2b.pages import MAX_PAGE, page_of
from space.e2b.request import project_of, read_json, sandbox_id
from space.model.template import Template


def add_routes(app: FastAPI, plane: Plane, domain: str | None) -> None:
    """Add the routes over `plane`; `domain` as in answers.created."""
    _add_snapshots(app, plane)

    @app.post("/sandboxes/{ident}/fork")
    async def fork(request: Request, ident: str) -> Response:
        """Make running copies of a sandbox, which goes on; each is there or says why not.

        They may reach what the sandbox may, with the same secrets: E2B has one network configuration for all of them.
        """
        project, parent = project_of(request), sandbox_id(ident)
        body = await read_json(request, Fork)
        policy = (await egress.get(plane, project, parent)).document
        changes = Changes(idle_timeout_s=None, timeout_s=body.timeout, timeout_restarts=True)
        wish = forks.ForkWish(body.count, {}, None, changes, policy)
        children = await forks.fork(plane, project, parent, wish, wait=True)
        return JSONResponse([_result(child, domain) for child in children], 201)


def _result(child: forks.Child, domain: str | None) -> answers.Json:
    if child.error is not None:
        return {"error": body_of(child.error)}
    assert child.sandbox is not None, "waited for, it runs or has an error"
    return {"sandbox": answers.created(child.sandbox, domain)}


def _add_snapshots(app: FastAPI, plane: Plane) -> None:
    @app.post("/sandboxes/{ident}/snapshots")
    async def take(request: Request, ident: str) -> Response:
        """Freeze a copy of a sandbox, which goes on."""
        project, sandbox = project_of(request), sandbox_id(ident)
        body = await read_json(request, Snapshot)
        name = None if body.name is None else references.plain(body.name)
        taken, _ = await snapshots.take(plane, project, sandbox, name, memory=body.memory, wait=True)
        assert taken is not None, "waited for, it is there"
        return JSONResponse(_info(taken), 201)

    @app.get("/snapshots")
    async def list_snapshots(
        request: Request,
        sandboxID: str = "",  # noqa: N803 - the name in the protocol
        name: str = "",
        limit: int = MAX_PAGE,
        nextToken: str = "",  # noqa: N803 - the name in the protocol
    ) -> Response:
        """List snapshots, newest first."""
        wanted = references.plain(name)
        found = [
            one
            for one in await snapshots.listed(plane, project_of(request))
            if (not sandboxID or one.sandbox == sandboxID) and (not name or one.name == wanted)
        ]
        page, headers = page_of(found, lambda one: one.digest.removeprefix("sha256:"), limit, nextToken)
        return JSONResponse([_info(one) for one in page], headers=headers)


def _info(snapshot: Template) -> answers.Json:
    name = references.shown(snapshot.name)
    names = [name] if name == snapshot.name else []
    return {"snapshotID": f"{name}:{references.DEFAULT_TAG}", "names": names}
